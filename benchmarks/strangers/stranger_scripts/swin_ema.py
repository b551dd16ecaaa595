import copy
import timm, torch
from tick import steps

torch.backends.cudnn.benchmark = True
model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=100, drop_path_rate=0.1).cuda()
model = model.to(memory_format=torch.channels_last)
ema = copy.deepcopy(model).eval().requires_grad_(False)
net = torch.compile(model)
opt = torch.optim.AdamW(model.parameters(), 5e-4, weight_decay=0.05)
scaler = torch.amp.GradScaler("cuda")
loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
for i in steps():
    x = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 100, (64,), device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = loss_fn(net(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    with torch.no_grad():
        torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1e-3)

import timm, torch, torch.nn.functional as F
from tick import steps

model = timm.create_model("efficientnet_b1", num_classes=1000).cuda().to(memory_format=torch.channels_last)
net = torch.compile(model)
opt = torch.optim.RMSprop(model.parameters(), 0.01, alpha=0.9, momentum=0.9, eps=1e-3)
for i in steps():
    x = torch.rand(64, 3, 240, 240, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (64,), device="cuda")
    lam = 0.3
    perm = torch.randperm(64, device="cuda")
    x = lam * x + (1 - lam) * x[perm]
    with torch.autocast("cuda", torch.bfloat16):
        logits = net(x)
        loss = lam * F.cross_entropy(logits, y) + (1 - lam) * F.cross_entropy(logits, y[perm])
    opt.zero_grad()
    loss.backward()
    opt.step()

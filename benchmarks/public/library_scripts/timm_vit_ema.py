import torch, timm, timm.optim
from timm.utils import ModelEmaV3
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy

m = timm.create_model("vit_tiny_patch16_224", num_classes=100, drop_path_rate=0.1).cuda()
ema = ModelEmaV3(m, decay=0.999)
c = torch.compile(m)
opt = timm.optim.create_optimizer_v2(m, opt="lamb", lr=0.001, weight_decay=0.02)
mix = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=100, label_smoothing=0.1)
lf = SoftTargetCrossEntropy()
for i in range(12):
    x, y = (torch.randn(64, 3, 224, 224).cuda(), torch.randint(0, 100, (64,)).cuda())
    x, y = mix(x, y)
    with torch.autocast("cuda", torch.bfloat16):
        loss = lf(c(x), y)
    opt.zero_grad()
    loss.backward()
    timm.utils.dispatch_clip_grad(m.parameters(), 1.0, mode="agc")
    opt.step()
    ema.update(m)
    torch.cuda.synchronize()
    print(loss.item())

import torch, torchvision, torch.nn.functional as F

m = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21).cuda()
m = m.to(memory_format=torch.channels_last)
opt = torch.optim.SGD(m.parameters(), 0.01, momentum=0.9, weight_decay=0.0001)
sc = torch.amp.GradScaler("cuda")
sched = torch.optim.lr_scheduler.PolynomialLR(opt, 100, power=0.9)
for i in range(12):
    x = torch.randn(8, 3, 384, 384, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 21, (8, 384, 384), device="cuda")
    y[:, :8] = 255
    with torch.amp.autocast("cuda"):
        out = m(x)
        loss = F.cross_entropy(out["out"], y, ignore_index=255) + 0.0 * sum((v.float().mean() for v in out.values()))
    opt.zero_grad(set_to_none=True)
    sc.scale(loss).backward()
    sc.step(opt)
    sc.update()
    sched.step()

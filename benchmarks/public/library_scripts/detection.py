import torch, torchvision
from torchvision.models.detection import fasterrcnn_resnet50_fpn

model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5).cuda().train()
opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.005, momentum=0.9)


def batch():
    imgs = [torch.rand(3, 480, 640).cuda() for _ in range(4)]
    tg = []
    for _ in range(4):
        n = 6
        xy = torch.rand(n, 2) * 200
        wh = torch.rand(n, 2) * 200 + 10
        tg.append({"boxes": torch.cat([xy, xy + wh], 1).cuda(), "labels": torch.randint(1, 5, (n,)).cuda()})
    return (imgs, tg)


for i in range(20):
    imgs, tg = batch()
    losses = model(imgs, tg)
    loss = sum(losses.values())
    if not torch.isfinite(loss):
        raise SystemExit(f"Loss is {loss.item()}, stopping training")
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, {k: v.item() for k, v in losses.items()})

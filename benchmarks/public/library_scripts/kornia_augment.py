import torch, torch.nn as nn, kornia.augmentation as K, torchvision
from torchmetrics.classification import MulticlassAccuracy

aug = nn.Sequential(
    K.RandomHorizontalFlip(p=0.5),
    K.RandomAffine(degrees=10.0),
    K.ColorJitter(0.2, 0.2, 0.2, 0.1, p=0.8),
    K.RandomErasing(p=0.3),
    K.Normalize(torch.tensor([0.5] * 3), torch.tensor([0.25] * 3)),
).cuda()
model = torchvision.models.mobilenet_v3_large(num_classes=100).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=400)
acc = MulticlassAccuracy(num_classes=100).cuda()
scaler = torch.amp.GradScaler()
for step in range(300):
    x, y = torch.rand(64, 3, 224, 224).cuda(non_blocking=True), torch.randint(0, 100, (64,)).cuda()
    with torch.no_grad():
        x = aug(x)
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y, label_smoothing=0.1)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    sched.step()
    acc.update(out, y)
    if step % 5 == 0:
        print(step, loss.item(), acc.compute().item())

import torch, torch.nn as nn, torchvision, copy, torch.nn.functional as F

q = torchvision.models.resnet50(num_classes=128).cuda()
k = copy.deepcopy(q)
for p in k.parameters():
    p.requires_grad = False
queue = F.normalize(torch.randn(128, 65536), dim=0).cuda()
ptr = torch.zeros(1, dtype=torch.long)
opt = torch.optim.SGD(q.parameters(), 0.03, momentum=0.9, weight_decay=0.0001)
for i in range(12):
    a, b = (torch.rand(32, 3, 224, 224).cuda(non_blocking=True), torch.rand(32, 3, 224, 224).cuda(non_blocking=True))
    z = F.normalize(q(a), dim=1)
    with torch.no_grad():
        for pq, pk in zip(q.parameters(), k.parameters()):
            pk.data = pk.data * 0.999 + pq.data * 0.001
        idx = torch.randperm(32).cuda()
        kz = F.normalize(k(b[idx]), dim=1)[torch.argsort(idx)]
    logits = (
        torch.cat([torch.einsum("nc,nc->n", z, kz)[:, None], torch.einsum("nc,ck->nk", z, queue.clone().detach())], 1)
        / 0.07
    )
    loss = F.cross_entropy(logits, torch.zeros(32, dtype=torch.long).cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
    p = int(ptr)
    queue[:, p : p + 32] = kz.T
    ptr[0] = (p + 32) % 65536
    _, top = logits.topk(5, 1)
    print(i, loss.item(), (top[:, 0] == 0).float().sum().item())

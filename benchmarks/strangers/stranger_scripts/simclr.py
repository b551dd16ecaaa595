import torch, torch.nn as nn, torch.nn.functional as F
import timm
from tick import steps

net = timm.create_model("resnet34", num_classes=0).cuda().to(memory_format=torch.channels_last)
proj = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128)).cuda()
full = torch.compile(nn.Sequential(net, proj), mode="max-autotune-no-cudagraphs")
opt = torch.optim.SGD([*net.parameters(), *proj.parameters()], 0.3, momentum=0.9, weight_decay=1e-4)
mask = torch.eye(256, dtype=torch.bool, device="cuda")
pos = torch.arange(256, device="cuda").roll(128)
for i in steps():
    x = torch.rand(128, 3, 128, 128, device="cuda")
    flip = x.flip(-1) * (0.6 + 0.8 * torch.rand(128, 3, 1, 1, device="cuda"))
    both = torch.cat([x, flip]).to(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.bfloat16):
        z = F.normalize(full(both).float(), dim=1)
    sim = (z @ z.T / 0.2).masked_fill(mask, float("-inf"))
    loss = F.cross_entropy(sim, pos)
    opt.zero_grad()
    loss.backward()
    opt.step()

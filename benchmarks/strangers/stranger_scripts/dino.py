import copy
import timm, torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.set_float32_matmul_precision("high")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.vit = timm.create_model("vit_small_patch16_224", num_classes=0, dynamic_img_size=True)
        self.head = nn.Sequential(nn.Linear(384, 2048), nn.GELU(), nn.Linear(2048, 256))
        self.last = nn.Linear(256, 8192, bias=False)

    def forward(self, x):
        return self.last(F.normalize(self.head(self.vit(x)), dim=-1))


student = Net().cuda()
teacher = copy.deepcopy(student).requires_grad_(False)
s, t = torch.compile(student), torch.compile(teacher)
opt = torch.optim.AdamW(student.parameters(), 5e-4)
center = torch.zeros(1, 8192, device="cuda")
for i in steps():
    big = torch.randn(32, 3, 224, 224, device="cuda")
    small = torch.randn(64, 3, 96, 96, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            target = t(big)
        a, b = s(big), s(small)
        q = F.softmax((target.float() - center) / 0.04, dim=-1)
        loss = -(q * F.log_softmax(a.float() / 0.1, dim=-1)).sum(-1).mean()
        loss = loss - (q.repeat(2, 1) * F.log_softmax(b.float() / 0.1, dim=-1)).sum(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, q2 in zip(student.parameters(), teacher.parameters()):
            q2.mul_(0.996).add_(p, alpha=0.004)
        center.mul_(0.9).add_(target.float().mean(0, keepdim=True), alpha=0.1)

import timm
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, adaptive=False, **kwargs):
        super().__init__(params, dict(rho=rho, adaptive=adaptive, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                e_w = (torch.pow(p, 2) if group["adaptive"] else 1.0) * p.grad * scale.to(p)
                p.add_(e_w)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    def _grad_norm(self):
        device = self.param_groups[0]["params"][0].device
        norms = [
            ((torch.abs(p) if group["adaptive"] else 1.0) * p.grad).norm(p=2).to(device)
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        return torch.norm(torch.stack(norms), p=2)


def mixup(x, y, classes, alpha=0.2):
    lam = torch.distributions.Beta(alpha, alpha).sample().item()
    perm = torch.randperm(x.size(0), device=x.device)
    one = F.one_hot(y, classes).float() * 0.9 + 0.1 / classes
    return lam * x + (1 - lam) * x[perm], lam * one + (1 - lam) * one[perm]


model = timm.create_model("vit_small_patch16_224", num_classes=1000, drop_path_rate=0.0).cuda()
for i in range(len(model.blocks)):
    model.blocks[i] = torch.compile(model.blocks[i])
optimizer = SAM(model.parameters(), torch.optim.AdamW, rho=0.1, adaptive=True, lr=1e-3, weight_decay=0.3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base_optimizer, T_max=1000)
images = torch.randn(512, 3, 224, 224, device="cuda")
labels = torch.randint(0, 1000, (512,), device="cuda")
for i in steps():
    idx = torch.randperm(512, device="cuda")[:256]
    x, y = mixup(images[idx], labels[idx], 1000)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.first_step(zero_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        F.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.second_step(zero_grad=True)
    scheduler.step()

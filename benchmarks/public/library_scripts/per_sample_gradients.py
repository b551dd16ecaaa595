import torch, torch.nn as nn, torch.nn.functional as F
from torch.func import functional_call, vmap, grad, stack_module_state


class SimpleCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))), dim=1)


device = "cuda"
model = SimpleCNN().to(device)
params = {k: v.detach() for k, v in model.named_parameters()}


def compute_loss(params, sample, target):
    return F.nll_loss(functional_call(model, params, (sample.unsqueeze(0),)), target.unsqueeze(0))


ft = vmap(grad(compute_loss), in_dims=(None, 0, 0))
for step in range(300):
    data, targets = torch.randn(64, 1, 28, 28, device=device), torch.randint(10, (64,), device=device)
    grads = ft(params, data, targets)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    scale = (1.0 / norms).clamp(max=1.0)
    params = {k: v - 0.1 * torch.einsum("b,b...->...", scale, grads[k]) / 64 for k, v in params.items()}
    print(step, norms.mean().item())

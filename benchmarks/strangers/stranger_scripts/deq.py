import torch, torch.nn as nn, torch.nn.functional as F, torch.autograd as autograd
from torch.utils.data import DataLoader, TensorDataset
from tick import steps

device = "cuda"
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True


class ResNetLayer(nn.Module):
    def __init__(self, n_channels, n_inner, kernel_size=3, num_groups=8):
        super().__init__()
        self.conv1 = nn.Conv2d(n_channels, n_inner, kernel_size, padding=kernel_size // 2, bias=False)
        self.conv2 = nn.Conv2d(n_inner, n_channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm1 = nn.GroupNorm(num_groups, n_inner)
        self.norm2 = nn.GroupNorm(num_groups, n_channels)
        self.norm3 = nn.GroupNorm(num_groups, n_channels)
        self.conv1.weight.data.normal_(0, 0.01)
        self.conv2.weight.data.normal_(0, 0.01)

    def forward(self, z, x):
        y = self.norm1(F.relu(self.conv1(z)))
        return self.norm3(F.relu(z + self.norm2(x + self.conv2(y))))


def anderson(f, x0, m=5, lam=1e-4, max_iter=50, tol=1e-2, beta=1.0):
    bsz, d, H, W = x0.shape
    X = torch.zeros(bsz, m, d * H * W, dtype=x0.dtype, device=x0.device)
    G = torch.zeros(bsz, m, d * H * W, dtype=x0.dtype, device=x0.device)
    X[:, 0], G[:, 0] = x0.reshape(bsz, -1), f(x0).reshape(bsz, -1)
    X[:, 1], G[:, 1] = G[:, 0], f(G[:, 0].reshape(x0.shape)).reshape(bsz, -1)
    A = torch.zeros(bsz, m + 1, m + 1, dtype=x0.dtype, device=x0.device)
    A[:, 0, 1:] = A[:, 1:, 0] = 1
    y = torch.zeros(bsz, m + 1, 1, dtype=x0.dtype, device=x0.device)
    y[:, 0] = 1
    res = []
    for k in range(2, max_iter):
        n = min(k, m)
        R = G[:, :n] - X[:, :n]
        A[:, 1 : n + 1, 1 : n + 1] = torch.bmm(R, R.transpose(1, 2)) + lam * torch.eye(
            n, dtype=x0.dtype, device=x0.device
        )
        alpha = torch.linalg.solve(A[:, : n + 1, : n + 1], y[:, : n + 1])[:, 1 : n + 1, 0]
        X[:, k % m] = beta * (alpha[:, None] @ G[:, :n])[:, 0] + (1 - beta) * (alpha[:, None] @ X[:, :n])[:, 0]
        G[:, k % m] = f(X[:, k % m].reshape(x0.shape)).reshape(bsz, -1)
        res.append((G[:, k % m] - X[:, k % m]).norm().item() / (1e-5 + G[:, k % m].norm().item()))
        if res[-1] < tol:
            break
    return X[:, k % m].view_as(x0), res


class DEQFixedPoint(nn.Module):
    def __init__(self, f, solver, **kwargs):
        super().__init__()
        self.f, self.solver, self.kwargs = f, solver, kwargs

    def forward(self, x):
        with torch.no_grad():
            z, self.forward_res = self.solver(lambda z: self.f(z, x), torch.zeros_like(x), **self.kwargs)
        z = self.f(z, x)
        z0 = z.clone().detach().requires_grad_()
        f0 = self.f(z0, x)

        def backward_hook(grad):
            g, self.backward_res = self.solver(
                lambda y: autograd.grad(f0, z0, y, retain_graph=True)[0] + grad, grad, **self.kwargs
            )
            return g

        z.register_hook(backward_hook)
        return z


chan = 48
f = ResNetLayer(chan, 64)
model = nn.Sequential(
    nn.Conv2d(3, chan, kernel_size=3, bias=True, padding=1),
    nn.BatchNorm2d(chan),
    DEQFixedPoint(f, anderson, tol=1e-7, max_iter=25, m=5),
    nn.BatchNorm2d(chan),
    nn.AvgPool2d(8, 8),
    nn.Flatten(),
    nn.Linear(chan * 4 * 4, 10),
).to(device)

images = torch.randn(2000, 3, 32, 32)
loader = DataLoader(
    TensorDataset(images, torch.randint(0, 10, (2000,))), batch_size=100, shuffle=True, num_workers=0, drop_last=True
)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 50 * 500, eta_min=1e-6)
total_err, total_loss = 0, 0.0
batches = iter(loader)
for i in steps():
    try:
        X, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        X, y = next(batches)
    X, y = X.to(device), y.to(device)
    yp = model(X)
    loss = nn.CrossEntropyLoss()(yp, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    scheduler.step()
    total_err += (yp.max(dim=1)[1] != y).sum().item()
    total_loss += loss.item() * X.shape[0]

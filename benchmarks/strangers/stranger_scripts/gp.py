"""Exact GP regression with ARD Matern kernel: marginal likelihood by Cholesky, L-BFGS with a closure, batch of tasks."""

import math, torch
from tick import steps

TASKS, N, DIM = 4, 2048, 16
dev, dt = "cuda", torch.float32
X = torch.randn(TASKS, N, DIM, device=dev, dtype=dt)
y = torch.sin(X.sum(-1)) + 0.1 * torch.randn(TASKS, N, device=dev)
Xt = torch.randn(TASKS, 512, DIM, device=dev)
raw_ls = torch.zeros(TASKS, 1, DIM, device=dev, requires_grad=True)
raw_os = torch.zeros(TASKS, 1, 1, device=dev, requires_grad=True)
raw_noise = torch.full((TASKS, 1), -2.0, device=dev, requires_grad=True)
mean = torch.zeros(TASKS, 1, device=dev, requires_grad=True)
softplus = torch.nn.functional.softplus


def kernel(a, b):
    ls = softplus(raw_ls)
    a, b = a / ls, b / ls
    d2 = a.pow(2).sum(-1, keepdim=True) - 2 * a @ b.mT + b.pow(2).sum(-1, keepdim=True).mT
    d = (d2.clamp(min=1e-12) * 5).sqrt()
    return softplus(raw_os) * (1 + d + d * d / 3) * torch.exp(-d)


def nll():
    K = kernel(X, X)
    K = K + torch.diag_embed((softplus(raw_noise) + 1e-4).expand(TASKS, N))
    Lc = torch.linalg.cholesky(K)
    r = (y - mean)[..., None]
    z = torch.linalg.solve_triangular(Lc, r, upper=False)
    logdet = 2 * Lc.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (z.square().sum((1, 2)) + logdet + N * math.log(2 * math.pi)).sum() / N


def predict():
    with torch.no_grad():
        K = kernel(X, X) + torch.eye(N, device=dev) * 0.1
        Lc, info = torch.linalg.cholesky_ex(K)
        ks = kernel(X, Xt)
        a = torch.cholesky_solve((y - mean)[..., None], Lc)
        v = torch.linalg.solve_triangular(Lc, ks, upper=False)
        return (ks.mT @ a).squeeze(-1), softplus(raw_os).squeeze(-1) - v.square().sum(1)


opt = torch.optim.LBFGS([raw_ls, raw_os, raw_noise, mean], lr=0.1, max_iter=2, history_size=10)


def closure():
    opt.zero_grad()
    loss = nll()
    loss.backward()
    return loss


for i in steps(count=4):
    opt.step(closure)
    mu, var = predict()
    crps = (mu / var.clamp(min=1e-6).sqrt()).mean()

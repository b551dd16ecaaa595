"""KalmanNet-like: batched Kalman filter + RTS smoother with learned dynamics in float64 4x4..8x8 matrices."""

import torch
from torch import nn
from tick import steps

B, T, S, O = 512, 24, 8, 4


class DeepKalman(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.GRU(32, 128, batch_first=True)
        self.obs, self.rn = nn.Linear(128, O), nn.Linear(128, O)
        self.A = nn.Parameter(torch.eye(S) + 0.01 * torch.randn(S, S))
        self.C = nn.Parameter(torch.randn(O, S) * 0.3)
        self.logq, self.L0 = nn.Parameter(torch.full((S,), -2.0)), nn.Parameter(torch.eye(S))
        self.dec = nn.Sequential(nn.Linear(S, 128), nn.ELU(), nn.Linear(128, 32))

    def forward(self, x):
        h, _ = self.enc(x)
        z, R = self.obs(h).double(), torch.diag_embed(nn.functional.softplus(self.rn(h)).double() + 1e-3)
        A, C, Q = self.A.double(), self.C.double(), torch.diag(self.logq.exp()).double()
        I = torch.eye(S, device=x.device, dtype=torch.float64)
        m = torch.zeros(B, S, 1, device=x.device, dtype=torch.float64)
        P = (self.L0 @ self.L0.T).double().expand(B, S, S)
        ms, Ps, pm, pP, ll = [], [], [], [], 0
        for t in range(T):
            m, P = A @ m, A @ P @ A.T + Q
            pm.append(m)
            pP.append(P)
            r = z[:, t, :, None] - C @ m
            Sg = C @ P @ C.T + R[:, t]
            Lc = torch.linalg.cholesky(Sg)
            K = torch.cholesky_solve(C @ P, Lc).mT
            m, P = m + K @ r, (I - K @ C) @ P
            P = (P + P.mT) / 2
            ll = ll - 0.5 * (r.mT @ torch.cholesky_solve(r, Lc)).squeeze() - Lc.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            ms.append(m)
            Ps.append(P)
        sm = [ms[-1]]
        for t in range(T - 2, -1, -1):
            G = torch.linalg.solve(pP[t + 1], A @ Ps[t]).mT
            sm.append(ms[t] + G @ (sm[-1] - pm[t + 1]))
        s = torch.stack(sm[::-1], 1).squeeze(-1).float()
        return self.dec(s), ll.float()


net = DeepKalman().cuda()
opt = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9, foreach=True)
for i in steps(count=5):
    x = torch.randn(B, T, 32, device="cuda")
    y, ll = net(x)
    loss = (y - x).square().mean() - 1e-3 * ll.mean()
    opt.zero_grad()
    loss.backward()
    g = nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=False)
    opt.step()

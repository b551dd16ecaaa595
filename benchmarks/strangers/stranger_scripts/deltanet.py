"""DeltaNet: the delta rule in chunks with triangular solves, short convolutions, compiled; EMA by torch.optim.swa_utils."""

import torch, torch.nn as nn, torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tick import steps

torch.set_float32_matmul_precision("high")
B, T, D, H, LAYERS, C, VOCAB = 8, 1024, 1024, 8, 8, 64, 32768


def delta_rule(q, k, v, beta):
    """All (B, H, T, d), beta (B, H, T): what each query reads of a memory written by the delta rule."""
    b, h, t, d = q.shape
    q, k, v = ((z.float()).unflatten(2, (-1, C)) for z in (q * d**-0.5, k, v))
    beta = beta.float().unflatten(2, (-1, C))[..., None]
    eye = torch.eye(C, device=q.device)
    k_beta, v_beta = k * beta, v * beta
    inner = eye + (k_beta @ k.mT).tril(-1)
    solved = torch.linalg.solve_triangular(inner, torch.cat([k_beta, v_beta], -1), upper=False, unitriangular=True)
    w, u = solved.split(d, -1)
    seen = (q @ k.mT).tril()
    memory, out = q.new_zeros(b, h, d, d), []
    for i in range(t // C):
        fresh = u[:, :, i] - w[:, :, i] @ memory
        out.append(q[:, :, i] @ memory + seen[:, :, i] @ fresh)
        memory = memory + k[:, :, i].mT @ fresh
    return torch.stack(out, 2).flatten(2, 3)


class Short(nn.Conv1d):
    def __init__(s, d):
        super().__init__(d, d, 4, padding=3, groups=d, bias=False)

    def forward(s, x):
        return F.silu(super().forward(x.mT)[..., : x.size(1)].mT)


class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.n1, s.n2, s.no = nn.RMSNorm(D), nn.RMSNorm(D), nn.RMSNorm(D // H)
        s.q, s.k, s.v, s.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        s.cq, s.ck, s.cv = Short(D), Short(D), Short(D)
        s.beta = nn.Linear(D, H)
        s.up, s.down = nn.Linear(D, 2 * 2816, bias=False), nn.Linear(2816, D, bias=False)

    def forward(s, x):
        y = s.n1(x)
        q, k, v = (c(f(y)).unflatten(-1, (H, -1)).transpose(1, 2) for c, f in ((s.cq, s.q), (s.ck, s.k), (s.cv, s.v)))
        q, k = F.normalize(q.float(), dim=-1), F.normalize(k.float(), dim=-1)
        with torch.autocast("cuda", enabled=False):
            o = delta_rule(q, k, v, s.beta(y.float()).sigmoid().transpose(1, 2))
        x = x + s.o(s.no(o).transpose(1, 2).flatten(2))
        gate, up = s.up(s.n2(x)).chunk(2, -1)
        return x + s.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(s):
        super().__init__()
        s.e, s.blocks, s.n = nn.Embedding(VOCAB, D), nn.ModuleList(Block() for _ in range(LAYERS)), nn.RMSNorm(D)
        s.head = nn.Linear(D, VOCAB, bias=False)

    def forward(s, ids, targets):
        x = s.e(ids)
        for block in s.blocks:
            x = block(x)
        return F.cross_entropy(s.head(s.n(x)).float().flatten(0, 1), targets.flatten())


model = Model().cuda()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
for block in model.blocks:
    block.compile()
opt = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1, foreach=True)
for i in steps(count=6):
    ids = torch.randint(0, VOCAB, (B, T + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(ids[:, :-1], ids[:, 1:])
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    opt.step()
    ema.update_parameters(model)

"""A training step captured by hand with torch.cuda.graph: decision-transformer-like policy, capturable Adam, static inputs."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, T, D, H, LAYERS, OBS, ACT = 64, 64, 512, 8, 6, 39, 28
torch.backends.cuda.matmul.allow_tf32 = True


class Policy(nn.Module):
    def __init__(s):
        super().__init__()
        s.ret, s.obs, s.act = nn.Linear(1, D), nn.Linear(OBS, D), nn.Linear(ACT, D)
        s.time, s.norm = nn.Embedding(1000, D), nn.LayerNorm(D)
        layer = nn.TransformerEncoderLayer(D, H, 4 * D, 0.0, "gelu", batch_first=True, norm_first=True)
        s.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        s.head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, ACT), nn.Tanh())
        s.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(3 * T))

    def forward(s, ret, obs, act, time):
        t = s.time(time)
        x = torch.stack([s.ret(ret) + t, s.obs(obs) + t, s.act(act) + t], 2).flatten(1, 2)
        x = s.body(s.norm(x), mask=s.mask, is_causal=True)
        return s.head(x[:, 1::3])


policy = Policy().cuda()
opt = torch.optim.Adam(policy.parameters(), 1e-4, capturable=True)
static = {
    "ret": torch.zeros(B, T, 1, device="cuda"),
    "obs": torch.zeros(B, T, OBS, device="cuda"),
    "act": torch.zeros(B, T, ACT, device="cuda"),
    "time": torch.zeros(B, T, dtype=torch.long, device="cuda"),
}


def train():
    opt.zero_grad(set_to_none=True)
    loss = F.smooth_l1_loss(policy(**static), static["act"])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.25, foreach=True)
    opt.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
opt.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    static_loss = train()

replay = {k: torch.randn(2000, T, v.size(-1), device="cuda") for k, v in static.items() if k != "time"}
losses = []
for i in steps():
    rows = torch.randint(0, 2000, (B,), device="cuda")
    for k, v in replay.items():
        static[k].copy_(v[rows])
    static["time"].copy_(torch.randint(0, 900, (B, 1), device="cuda") + torch.arange(T, device="cuda"))
    graph.replay()
    if i % 10 == 0:
        losses.append(static_loss.clone())

"""Sampling from a 3B decoder with grouped queries: the cache has one fixed size, positions live on the device."""

import torch
import torch.nn.functional as F
from tick import steps

dim, n_layers, n_heads, n_kv, head_dim, ffn, vocab = 3072, 28, 24, 8, 128, 8192, 128256
batch, max_len, prompt_len, per_step = 32, 2048, 512, 8
softcap, final_cap, temperature, top_k = 50.0, 30.0, 0.8, 50
dtype, device = torch.bfloat16, "cuda"


def dense(rows, cols):
    return torch.randn(rows, cols, dtype=dtype, device=device) * cols**-0.5


def make_layer():
    return {
        "ln1": torch.ones(dim, dtype=dtype, device=device),
        "ln2": torch.ones(dim, dtype=dtype, device=device),
        "wqkv": dense((n_heads + 2 * n_kv) * head_dim, dim),
        "wo": dense(dim, n_heads * head_dim),
        "w13": dense(2 * ffn, dim),
        "w2": dense(dim, ffn),
        "k": torch.zeros(batch, n_kv, max_len, head_dim, dtype=dtype, device=device),
        "v": torch.zeros(batch, n_kv, max_len, head_dim, dtype=dtype, device=device),
    }


def rms_norm(x, w, eps=1e-5):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * w


def freqs_cis(theta=500000.0):
    inv = 1.0 / theta ** (torch.arange(0, head_dim, 2, device=device).float() / head_dim)
    angles = torch.outer(torch.arange(max_len, device=device).float(), inv)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x, cis):
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * cis[None, :, None]).flatten(-2).to(x.dtype)


def attend(layer, x, positions, cis, blocked):
    b, n, _ = x.shape
    qkv = F.linear(x, layer["wqkv"]).view(b, n, n_heads + 2 * n_kv, head_dim)
    q, k, v = qkv.split([n_heads, n_kv, n_kv], dim=2)
    q, k = rotate(q, cis), rotate(k, cis)
    layer["k"].index_copy_(2, positions, k.transpose(1, 2))
    layer["v"].index_copy_(2, positions, v.transpose(1, 2))
    group = n_heads // n_kv
    q = q.view(b, n, n_kv, group, head_dim).permute(0, 2, 3, 1, 4).reshape(b, n_kv, group * n, head_dim)
    scores = (q @ layer["k"].transpose(-1, -2)).view(b, n_kv, group, n, max_len).float() * head_dim**-0.5
    scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(blocked, float("-inf"))
    p = scores.softmax(-1).to(x.dtype).view(b, n_kv, group * n, max_len)
    y = (p @ layer["v"]).view(b, n_kv, group, n, head_dim).permute(0, 3, 1, 2, 4)
    return F.linear(y.reshape(b, n, n_heads * head_dim), layer["wo"])


def forward(tokens, positions):
    x = embedding[tokens]
    cis = rotary[positions]
    blocked = slots[None, :] > positions[:, None]
    for layer in layers:
        x = x + attend(layer, rms_norm(x, layer["ln1"]), positions, cis, blocked)
        gate, up = F.linear(rms_norm(x, layer["ln2"]), layer["w13"]).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, layer["w2"])
    logits = F.linear(rms_norm(x[:, -1], last_norm), embedding).float()
    return final_cap * torch.tanh(logits / final_cap)


def sample(logits):
    values, indices = (logits / temperature).topk(top_k, dim=-1)
    pick = torch.multinomial(values.softmax(-1), 1)
    return indices.gather(-1, pick)


with torch.inference_mode():
    layers = [make_layer() for _ in range(n_layers)]
    embedding = dense(vocab, dim)
    last_norm = torch.ones(dim, dtype=dtype, device=device)
    rotary = freqs_cis()
    slots = torch.arange(max_len, device=device)
    prompt = torch.randint(0, vocab, (batch, prompt_len), device=device)
    for begin in range(0, prompt_len, 128):
        logits = forward(prompt[:, begin : begin + 128], slots[begin : begin + 128])
    token = sample(logits)
    position = torch.full((1,), prompt_len, dtype=torch.long, device=device)
    written = torch.zeros(batch, max_len, dtype=torch.long, device=device)
    for step in steps():
        for _ in range(per_step):
            written.index_copy_(1, position, token)
            token = sample(forward(token, position))
            position += 1

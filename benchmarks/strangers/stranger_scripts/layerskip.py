"""Greedy self-speculative decoding: the first layers draft, all layers verify. Prompts are prefilled in chunks."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps
from torch.nn.attention.bias import causal_lower_right

VOCAB, DIM, LAYERS, EXIT, HEADS, FF = 128256, 2048, 16, 4, 32, 8192
PROMPT, CHUNK, ROUNDS, DRAFTS = 8192, 2048, 8, 5
LIMIT = PROMPT + ROUNDS * (DRAFTS + 1) + 16
DTYPE = torch.bfloat16


def rotate(x, table):
    cos, sin = table[..., 0], table[..., 1]
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).type_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM, eps=1e-5), nn.RMSNorm(DIM, eps=1e-5)
        self.wqkv, self.wo = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.w1, self.w3 = nn.Linear(DIM, FF, bias=False), nn.Linear(DIM, FF, bias=False)
        self.w2 = nn.Linear(FF, DIM, bias=False)
        shape = (1, HEADS, LIMIT, DIM // HEADS)
        self.register_buffer("k_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape), persistent=False)

    def project(self, x, table):
        q, k, v = self.wqkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return rotate(q, table), rotate(k, table), v

    def finish(self, x, y):
        x = x + self.wo(y.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))

    def decode(self, x, pos, table, mask):
        q, k, v = self.project(x, table)
        self.k_cache[:, :, pos] = k
        self.v_cache[:, :, pos] = v
        return self.finish(x, F.scaled_dot_product_attention(q, self.k_cache, self.v_cache, attn_mask=mask))

    def prefill(self, x, start, table):
        end = start + x.shape[1]
        q, k, v = self.project(x, table)
        self.k_cache[:, :, start:end] = k
        self.v_cache[:, :, start:end] = v
        keys, values = self.k_cache[:, :, :end], self.v_cache[:, :, :end]
        return self.finish(x, F.scaled_dot_product_attention(q, keys, values, causal_lower_right(end - start, end)))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM, eps=1e-5), nn.Linear(DIM, VOCAB, bias=False)
        half = DIM // HEADS // 2
        freq = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.outer(torch.arange(LIMIT, dtype=torch.float32), freq)
        self.register_buffer("rope", torch.stack([angle.cos(), angle.sin()], -1), persistent=False)
        self.register_buffer("causal", torch.ones(LIMIT, LIMIT, dtype=torch.bool).tril(), persistent=False)

    def decode(self, tokens, pos, depth):
        x, table, mask = self.embed(tokens), self.rope[pos], self.causal[pos]
        for layer in self.layers[:depth]:
            x = layer.decode(x, pos, table, mask)
        return self.head(self.norm(x)).argmax(-1)

    def prefill(self, tokens):
        for start in range(0, tokens.shape[1], CHUNK):
            piece = tokens[:, start : start + CHUNK]
            x, table = self.embed(piece), self.rope[start : start + piece.shape[1]]
            for layer in self.layers:
                x = layer.prefill(x, start, table)
        return self.head(self.norm(x[:, -1:])).argmax(-1)


def request(model, draft, verify, prompt):
    token, pos, out, accepted = model.prefill(prompt), prompt.shape[1], [], 0
    for _ in range(ROUNDS):
        guesses, current = [], token
        for j in range(DRAFTS):
            torch.compiler.cudagraph_mark_step_begin()
            current = draft(current, torch.tensor([pos + j], device=current.device)).clone()
            guesses.append(current)
        guess = torch.cat(guesses, 1)
        torch.compiler.cudagraph_mark_step_begin()
        where = torch.arange(pos, pos + DRAFTS + 1, device=guess.device)
        truth = verify(torch.cat([token, guess], 1), where).clone()
        n = int((guess == truth[:, :-1]).int().cumprod(-1).sum())
        out.extend(truth[0, : n + 1].tolist())
        token = truth[0, n].view(1, 1).clone()
        pos += n + 1
        accepted += n
    return out, accepted


torch.manual_seed(7)
with torch.device("cuda"):
    torch.set_default_dtype(DTYPE)
    model = Llama().eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
draft = torch.compile(lambda t, p: model.decode(t, p, EXIT), mode="reduce-overhead", fullgraph=True)
verify = torch.compile(lambda t, p: model.decode(t, p, LAYERS), mode="reduce-overhead", fullgraph=True)
written = kept = 0
with torch.no_grad():
    for i in steps():
        prompt = torch.randint(0, VOCAB, (1, PROMPT), device="cuda")
        out, accepted = request(model, draft, verify, prompt)
        written, kept = written + len(out), kept + accepted
print(f"{written} tokens, {kept} of them drafted")

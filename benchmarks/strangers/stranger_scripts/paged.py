"""A small serving engine: paged KV cache, chunked prefill beside batched decoding, int8 weights, a custom operator, compiled."""

import random
import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

D, H, KV, HD, LAYERS, FFN, VOCAB = 2048, 16, 4, 128, 12, 5632, 32000
PAGE, PAGES, SEATS, SEAT_PAGES, PREFILL = 16, 8192, 64, 80, 512


@torch.library.custom_op("engine::write_pages", mutates_args=("keys", "values"))
def write_pages(
    keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    keys.view(-1, KV, HD).index_copy_(0, slots, k)
    values.view(-1, KV, HD).index_copy_(0, slots, v)


class Int8(nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.register_buffer("w", torch.randint(-127, 127, (o, i), dtype=torch.int8))
        s.register_buffer("scale", torch.full((o,), 1e-4, dtype=torch.bfloat16))

    def forward(s, x):
        return F.linear(x, s.w.to(x.dtype) * s.scale[:, None])


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer(nn.Module):
    def __init__(s):
        super().__init__()
        s.n1, s.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        s.qkv, s.o = Int8(D, (H + 2 * KV) * HD), Int8(H * HD, D)
        s.up, s.down = Int8(D, 2 * FFN), Int8(FFN, D)
        s.register_buffer("keys", torch.zeros(PAGES, PAGE, KV, HD))
        s.register_buffer("values", torch.zeros(PAGES, PAGE, KV, HD))

    def forward(s, x, cos, sin, slots, tables, mask):
        """x: (sequences, new tokens, D); mask: (sequences, 1, new tokens, seat's length)."""
        n, t, _ = x.shape
        q, k, v = s.qkv(s.n1(x)).unflatten(-1, (-1, HD)).split([H, KV, KV], 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        write_pages(s.keys, s.values, slots, k.flatten(0, 1), v.flatten(0, 1))
        keys = s.keys[tables].flatten(1, 2).transpose(1, 2)
        values = s.values[tables].flatten(1, 2).transpose(1, 2)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=True)
        x = x + s.o(y.transpose(1, 2).flatten(2))
        g, u = s.up(s.n2(x)).chunk(2, -1)
        return x + s.down(F.silu(g) * u)


class Model(nn.Module):
    def __init__(s):
        super().__init__()
        s.e, s.n, s.head = nn.Embedding(VOCAB, D), nn.RMSNorm(D), Int8(D, VOCAB)
        s.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(s, ids, position, slots, tables):
        angle = position[..., None, None] * 10000 ** (-torch.arange(HD // 2, device=ids.device) / (HD // 2))
        cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
        mask = (torch.arange(tables.size(1) * PAGE, device=ids.device) <= position[..., None])[:, None]
        x = s.e(ids)
        for layer in s.layers:
            x = layer(x, cos, sin, slots, tables, mask)
        return s.head(s.n(x[:, -1]))


def sample(logits, top_p=0.9, temperature=0.7):
    p, order = (logits.float() / temperature).softmax(-1).sort(-1, descending=True)
    p = p * (p.cumsum(-1) - p < top_p)
    drawn = (p / torch.empty_like(p).exponential_()).argmax(-1, keepdim=True)
    return order.gather(1, drawn).squeeze(1)


with torch.device("cuda"):
    model = Model()
model = model.bfloat16().eval()
decode, prefill = torch.compile(model, dynamic=False), torch.compile(model, dynamic=False)
pick = torch.compile(sample)
rng = random.Random(0)
free = list(range(PAGES))
tables = [[free.pop() for _ in range(SEAT_PAGES)] for _ in range(SEATS)]
lengths = [rng.randrange(400, 1200) for _ in range(SEATS)]
last = torch.randint(0, VOCAB, (SEATS,), device="cuda")
waiting = [(rng.randrange(SEATS), 0)]


def put(x):
    return torch.tensor(x).pin_memory().to("cuda", non_blocking=True)


def tick():
    global last
    slots = [t[n // PAGE] * PAGE + n % PAGE for t, n in zip(tables, lengths)]
    logits = decode(last[:, None], put(lengths)[:, None], put(slots), put(tables))
    last = pick(logits)
    ended = [n + 1 >= 1250 for n in lengths]
    for seat, token in enumerate(last.tolist()):
        lengths[seat] = 600 if token == 2 or ended[seat] else lengths[seat] + 1
    seat, done = waiting[0]
    at = list(range(done, done + PREFILL))
    slots = [tables[seat][n // PAGE] * PAGE + n % PAGE for n in at]
    prompt = torch.randint(3, VOCAB, (1, PREFILL), device="cuda")
    prefill(prompt, put(at)[None], put(slots), put([tables[seat]]))
    waiting[0] = (seat, PREFILL) if done == 0 else (rng.randrange(SEATS), 0)


with torch.inference_mode():
    for i in steps(count=8):
        tick()

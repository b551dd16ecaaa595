"""Reads lines of text from pictures: TrOCR-base, served.

The vision encoder runs with int8 weights and int8 activations (dynamic scales per row), the decoder in bf16 with
static caches. One token for all lines is a CUDA graph; the lines are looked at for their ends every eight tokens.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

LINES, NEW, PROMPT = 32, 32, 4
E_DIM, E_LAYERS, E_HEADS, SIZE, PATCH = 768, 12, 12, 384, 16
D_DIM, D_LAYERS, D_HEADS, FFN, VOCAB = 1024, 12, 16, 4096, 50265
TOTAL = PROMPT + NEW
DEV, HALF = "cuda", torch.bfloat16


class Int8Linear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        w = linear.weight.data.float()
        scale = w.abs().amax(1) / 127
        self.register_buffer("weight", (w / scale[:, None]).round().clamp(-127, 127).to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", linear.bias.data.float())

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1]).float()
        s = rows.abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
        q = (rows / s).round().to(torch.int8)
        y = torch._int_mm(q, self.weight.t()).float() * s * self.scale + self.bias
        return y.to(HALF).view(*x.shape[:-1], -1)


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(E_DIM, eps=1e-12), nn.LayerNorm(E_DIM, eps=1e-12)
        self.qkv, self.proj = nn.Linear(E_DIM, 3 * E_DIM), nn.Linear(E_DIM, E_DIM)
        self.up, self.down = nn.Linear(E_DIM, 4 * E_DIM), nn.Linear(4 * E_DIM, E_DIM)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, E_HEADS, d // E_HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, E_DIM, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, E_DIM))
        self.pos = nn.Parameter(torch.randn(1, (SIZE // PATCH) ** 2 + 1, E_DIM) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(E_LAYERS))
        self.norm = nn.LayerNorm(E_DIM)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.so = nn.Linear(D_DIM, 3 * D_DIM), nn.Linear(D_DIM, D_DIM)
        self.cq, self.co, self.ckv = nn.Linear(D_DIM, D_DIM), nn.Linear(D_DIM, D_DIM), nn.Linear(E_DIM, 2 * D_DIM)
        self.up, self.down = nn.Linear(D_DIM, FFN), nn.Linear(FFN, D_DIM)
        self.n1, self.n2, self.n3 = (nn.LayerNorm(D_DIM) for _ in range(3))
        memory = (SIZE // PATCH) ** 2 + 1
        for name, length in (("k", TOTAL), ("v", TOTAL), ("ck", memory), ("cv", memory)):
            self.register_buffer(name, torch.zeros(LINES, D_HEADS, length, D_DIM // D_HEADS))

    def remember(self, memory):
        k, v = self.ckv(memory).view(*memory.shape[:2], 2, D_HEADS, -1).permute(2, 0, 3, 1, 4)
        self.ck.copy_(k)
        self.cv.copy_(v)

    def forward(self, x, at, mask):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, D_HEADS, -1).permute(2, 0, 3, 1, 4)
        self.k.index_copy_(2, at, k)
        self.v.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask)
        x = self.n1(x + self.so(y.transpose(1, 2).reshape(b, n, -1)))
        q = self.cq(x).view(b, n, D_HEADS, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, self.ck, self.cv)
        x = self.n2(x + self.co(y.transpose(1, 2).reshape(b, n, -1)))
        return self.n3(x + self.down(F.gelu(self.up(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.pos = nn.Embedding(VOCAB, D_DIM), nn.Embedding(TOTAL + 2, D_DIM)
        self.norm = nn.LayerNorm(D_DIM)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(D_LAYERS))

    def forward(self, tokens, at, mask, layers):
        x = self.norm(self.embed(tokens) + self.pos(at + 2))
        for layer in layers:
            x = layer(x, at, mask)
        return F.linear(x[:, -1], self.embed.weight).argmax(-1, keepdim=True)


def quantize(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child))
        else:
            quantize(child)


@torch.inference_mode()
def main():
    encoder, decoder = Encoder(), Decoder()
    quantize(encoder)
    encoder.to(DEV).eval()
    for m in encoder.modules():
        if isinstance(m, (nn.LayerNorm, nn.Conv2d)):
            m.to(HALF)
    encoder.cls.data, encoder.pos.data = encoder.cls.data.to(HALF), encoder.pos.data.to(HALF)
    decoder.to(DEV, HALF).eval()
    causal = torch.ones(TOTAL, TOTAL, dtype=torch.bool, device=DEV).tril()
    token = torch.zeros(LINES, 1, dtype=torch.long, device=DEV)
    where = torch.zeros(1, dtype=torch.long, device=DEV)
    done = torch.zeros(LINES, 1, dtype=torch.bool, device=DEV)
    prompt = torch.randint(4, VOCAB, (1, PROMPT), device=DEV).expand(LINES, -1)
    first = torch.arange(PROMPT, device=DEV)
    output = torch.zeros(LINES, TOTAL, dtype=torch.long, device=DEV)

    compiled = [torch.compile(layer, mode="max-autotune-no-cudagraphs", dynamic=False) for layer in decoder.layers]

    def advance():
        chosen = decoder(token, where, causal.index_select(0, where), compiled)
        chosen = torch.where(done, 1, chosen)
        done.logical_or_(chosen == 2)
        where.add_(1)
        token.copy_(chosen)
        output.index_copy_(1, where, chosen)

    where.fill_(PROMPT)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            advance()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    where.fill_(PROMPT)
    with torch.cuda.graph(graph):
        advance()

    pages = torch.randint(0, 256, (4 * LINES, 3, SIZE, SIZE), dtype=torch.uint8)
    read = 0
    for i in steps():
        images = pages[i % 4 * LINES :][:LINES].to(DEV).to(HALF).div_(127.5).sub_(1)
        memory = encoder(images)
        for layer in decoder.layers:
            layer.remember(memory)
        done.zero_()
        token.copy_(decoder(prompt, first, causal[:PROMPT], decoder.layers))
        where.fill_(PROMPT)
        output[:, :PROMPT], output[:, PROMPT : PROMPT + 1] = prompt, token
        for n in range(1, NEW):
            graph.replay()
            if n % 8 == 0 and done.all():
                break
        read += int((output[:, PROMPT:] > 2).sum())
    print("tokens read:", read)


main()

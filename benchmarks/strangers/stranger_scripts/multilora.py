# One base model, many adapters: every row of the decode batch belongs to another customer.
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

VOCAB, D, LAYERS, HEADS, KV, HD, FF = 128256, 2048, 16, 32, 8, 64, 8192
ROWS, CONTEXT, ADAPTERS, RANK, TOKENS = 32, 2048, 24, 16, 4
DTYPE, DEVICE = torch.bfloat16, "cuda"


class MultiLoraLinear(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cout, cin) * cin**-0.5)
        self.register_buffer("a", torch.randn(ADAPTERS, RANK, cin) * cin**-0.5)
        self.register_buffer("b", torch.randn(ADAPTERS, cout, RANK) * 0.01)

    def forward(self, x, who, scale):
        low = torch.bmm(self.a[who], x.unsqueeze(-1))
        return F.linear(x, self.weight) + torch.bmm(self.b[who], low * scale[who, None, None]).squeeze(-1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = MultiLoraLinear(D, HEADS * HD), MultiLoraLinear(D, KV * HD)
        self.v, self.o = MultiLoraLinear(D, KV * HD), MultiLoraLinear(HEADS * HD, D)
        self.register_buffer("keys", torch.randn(ROWS, KV, CONTEXT, HD) * 0.1)
        self.register_buffer("values", torch.randn(ROWS, KV, CONTEXT, HD) * 0.1)

    def forward(self, x, who, scale, where, cos, sin, mask):
        q = self.turn(self.q(x, who, scale).view(ROWS, HEADS, HD), cos, sin)
        k = self.turn(self.k(x, who, scale).view(ROWS, KV, HD), cos, sin)
        rows = torch.arange(ROWS, device=x.device)
        self.keys[rows, :, where] = k
        self.values[rows, :, where] = self.v(x, who, scale).view(ROWS, KV, HD)
        q = q.view(ROWS, KV, HEADS // KV, HD)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.o(y.reshape(ROWS, HEADS * HD), who, scale)

    @staticmethod
    def turn(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5)
        self.attn = Attention()
        self.gate, self.up, self.down = MultiLoraLinear(D, FF), MultiLoraLinear(D, FF), MultiLoraLinear(FF, D)

    def forward(self, x, who, scale, *rest):
        x = x + self.attn(self.norm1(x), who, scale, *rest)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h, who, scale)) * self.up(h, who, scale), who, scale)


class Server(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(D, eps=1e-5)
        self.register_buffer("scale", torch.full((ADAPTERS,), 2.0))
        angle = torch.outer(torch.arange(CONTEXT).float(), 500000.0 ** (-torch.arange(0, HD, 2).float() / HD))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, token, where, who, temperature):
        x = self.embed(token)
        cos, sin = (table[where].unsqueeze(1).to(x.dtype) for table in (self.cos, self.sin))
        seen = torch.arange(CONTEXT, device=x.device) <= where[:, None]
        mask = seen[:, None, None].expand(ROWS, KV, HEADS // KV, CONTEXT)
        for layer in self.layers:
            x = layer(x, who, self.scale, where, cos, sin, mask)
        logits = F.linear(self.norm(x), self.embed.weight).float() / temperature[:, None]
        least = logits.topk(50, dim=-1).values[:, -1:]
        p = logits.masked_fill(logits < least, -float("inf")).softmax(-1)
        return (p / torch.empty_like(p).exponential_(1)).argmax(-1)


torch.set_default_dtype(DTYPE)
with torch.device(DEVICE):
    server = Server().eval()
torch.set_default_dtype(torch.float32)
decode = torch.compile(server, mode="reduce-overhead", fullgraph=True)

token = torch.randint(VOCAB, (ROWS,), device=DEVICE)
who = torch.randint(ADAPTERS, (ROWS,), device=DEVICE)
where = torch.randint(CONTEXT // 4, CONTEXT // 2, (ROWS,), device=DEVICE)
temperature = torch.rand(ROWS, device=DEVICE) * 0.6 + 0.4
finished = []
with torch.inference_mode():
    for i in steps():
        for _ in range(TOKENS):
            torch.compiler.cudagraph_mark_step_begin()
            token = decode(token, where, who, temperature).clone()
            where = where + 1
        done = (where >= CONTEXT - TOKENS) | (torch.rand(ROWS, device=DEVICE) < 0.02)
        finished.append(int(done.sum()))
        where = torch.where(done, torch.randint(64, 512, (ROWS,), device=DEVICE), where)
        who = torch.where(done, torch.randint(ADAPTERS, (ROWS,), device=DEVICE), who)
print("finished", sum(finished))

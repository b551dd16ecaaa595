"""Captions by a vision-language model: hand-written SigLIP-like tower, projector, transformers' Qwen2 decoding in a static cache."""

import torch, torch.nn as nn, torch.nn.functional as F
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
from tick import steps

B, WIDTH, PATCH, SIDE, NEW = 8, 1024, 14, 336, 16


class Block(nn.Module):
    def __init__(s, d, h):
        super().__init__()
        s.h, s.n1, s.n2 = h, nn.LayerNorm(d), nn.LayerNorm(d)
        s.qkv, s.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        s.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))

    def forward(s, x):
        q, k, v = s.qkv(s.n1(x)).unflatten(-1, (3, s.h, -1)).permute(2, 0, 3, 1, 4)
        x = x + s.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + s.mlp(s.n2(x))


class Tower(nn.Module):
    def __init__(s, layers=16):
        super().__init__()
        n = (SIDE // PATCH) ** 2
        s.patch, s.position = nn.Conv2d(3, WIDTH, PATCH, PATCH), nn.Parameter(torch.randn(1, n, WIDTH) * 0.02)
        s.blocks = nn.Sequential(*(Block(WIDTH, 16) for _ in range(layers)))
        s.project = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2048), nn.GELU(), nn.Linear(2048, 1536))

    def forward(s, pixels):
        x = s.patch(pixels).flatten(2).transpose(1, 2) + s.position
        return s.project(s.blocks(x))


config = Qwen2Config(
    vocab_size=64000,
    hidden_size=1536,
    intermediate_size=4864,
    num_hidden_layers=8,
    num_attention_heads=12,
    num_key_value_heads=2,
    max_position_embeddings=4096,
)
language = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16).eval()
tower = torch.compile(Tower().to("cuda", torch.bfloat16).eval())
generation = GenerationConfig(
    max_new_tokens=NEW,
    min_new_tokens=NEW,
    do_sample=False,
    cache_implementation="static",
    disable_compile=True,
    pad_token_id=0,
    eos_token_id=2,
)
prompt = torch.randint(3, 64000, (1, 48), device="cuda").expand(B, -1)
mean = torch.tensor([0.48, 0.46, 0.41], device="cuda")[:, None, None]

with torch.inference_mode():
    for i in steps(count=4):
        frames = torch.randint(0, 256, (B, 3, 480, 640), dtype=torch.uint8, device="cuda")
        pixels = F.interpolate(frames.float(), (SIDE, SIDE), mode="bicubic", antialias=True) / 255
        seen = tower(((pixels - mean) / 0.27).bfloat16())
        words = language.get_input_embeddings()(prompt)
        embeds = torch.cat([words[:, :8], seen, words[:, 8:]], 1)
        mask = torch.ones(embeds.shape[:2], dtype=torch.long, device="cuda")
        out = language.generate(inputs_embeds=embeds, attention_mask=mask, generation_config=generation)
        texts = [row for row in out.cpu().tolist()]

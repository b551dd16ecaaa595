import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from tick import steps

cfg = Qwen3Config(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=10,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=64,
    tie_word_embeddings=True,
)
with torch.device("cuda"):
    model = Qwen3ForCausalLM(cfg).to(torch.bfloat16)
for layer in model.model.layers:
    layer.compile()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95))
for i in steps():
    ids = torch.randint(0, 32000, (4, 1024), device="cuda")
    out = model(input_ids=ids, labels=ids, use_cache=False)
    out.loss.backward()
    opt.step()
    opt.zero_grad()

import torch
from transformers import Phi3Config, Phi3ForCausalLM
from tick import steps

cfg = Phi3Config(
    vocab_size=32064,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=10,
    num_attention_heads=32,
    num_key_value_heads=8,
    pad_token_id=0,
)
m = Phi3ForCausalLM(cfg).to("cuda", torch.bfloat16).eval()
m.forward = torch.compile(m.forward)
with torch.inference_mode():
    for i in steps():
        ids = torch.randint(1, 32000, (4, 2048), device="cuda")
        out = m(input_ids=ids, use_cache=False, logits_to_keep=1)
        nxt = out.logits[:, -1].argmax(-1)

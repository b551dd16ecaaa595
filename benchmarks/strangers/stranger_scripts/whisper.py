import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration
from tick import steps

cfg = WhisperConfig(
    d_model=768,
    encoder_layers=6,
    decoder_layers=4,
    encoder_attention_heads=12,
    decoder_attention_heads=12,
    encoder_ffn_dim=3072,
    decoder_ffn_dim=3072,
)
m = WhisperForConditionalGeneration(cfg).half().cuda().eval()
enc = torch.compile(m.model.encoder)
with torch.inference_mode():
    for i in steps(count=4):
        mel = torch.randn(8, 80, 3000, device="cuda", dtype=torch.half)
        h = enc(mel).last_hidden_state
        tok = torch.full((8, 1), 50258, device="cuda")
        past = None
        for _ in range(12):
            o = m(encoder_outputs=(h,), decoder_input_ids=tok, past_key_values=past, use_cache=True)
            past = o.past_key_values
            tok = o.logits[:, -1:].argmax(-1)

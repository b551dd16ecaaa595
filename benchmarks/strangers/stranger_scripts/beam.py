"""Translation served with transformers: BART of random weights, beam search of fixed length."""

import torch
from transformers import BartConfig, BartForConditionalGeneration
from tick import steps

cfg = BartConfig(
    vocab_size=50265,
    d_model=768,
    encoder_layers=6,
    decoder_layers=6,
    encoder_ffn_dim=3072,
    decoder_ffn_dim=3072,
    encoder_attention_heads=12,
    decoder_attention_heads=12,
)
model = BartForConditionalGeneration(cfg).to("cuda", torch.float16).eval()
lengths = torch.tensor([256, 200, 180, 256, 90, 140, 256, 32])
for i in steps(warmup=2, count=2):
    ids = torch.randint(10, 50000, (8, 256), device="cuda")
    mask = (torch.arange(256)[None] < lengths[:, None]).long().cuda()
    ids = ids.masked_fill(mask == 0, cfg.pad_token_id)
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        num_beams=4,
        min_new_tokens=10,
        max_new_tokens=10,
        no_repeat_ngram_size=0,
        do_sample=False,
    )

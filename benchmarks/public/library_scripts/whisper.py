import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

m = WhisperForConditionalGeneration(
    WhisperConfig(
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
    )
).cuda()
opt = torch.optim.AdamW(m.parameters(), 1e-05)
for i in range(10):
    f = torch.randn(8, 80, 3000, device="cuda")
    lab = torch.randint(0, 51864, (8, 64), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = m(input_features=f, labels=lab).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    print(loss.item())

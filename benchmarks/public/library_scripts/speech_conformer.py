import torch, torchaudio

spec = torchaudio.transforms.MelSpectrogram(16000, n_fft=400, hop_length=160, n_mels=80).cuda()
mask = torch.nn.Sequential(torchaudio.transforms.FrequencyMasking(27), torchaudio.transforms.TimeMasking(100)).cuda()
enc = torchaudio.models.Conformer(
    input_dim=80, num_heads=4, ffn_dim=512, num_layers=8, depthwise_conv_kernel_size=31, dropout=0.1
).cuda()
head = torch.nn.Linear(80, 500).cuda()
ctc = torch.nn.CTCLoss(blank=0, zero_infinity=True)
opt = torch.optim.AdamW([*enc.parameters(), *head.parameters()], lr=1e-3, betas=(0.9, 0.98))
for step in range(300):
    wav = torch.randn(16, 16000 * 8, device="cuda")
    x = mask(torch.log(spec(wav) + 1e-6)).transpose(1, 2)
    lengths = torch.randint(400, x.shape[1] + 1, (16,))
    lengths[0] = x.shape[1]
    lengths = lengths.to("cuda")
    h, hl = enc(x, lengths)
    logp = head(h).log_softmax(-1).transpose(0, 1)
    y = torch.randint(1, 500, (16, 40), device="cuda")
    loss = ctc(logp, y, hl, torch.full((16,), 40, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())

import torch
from torch.nn.utils.parametrizations import weight_norm
from tick import steps


@torch.compile
def fused_add_tanh_sigmoid_multiply(input_a, input_b, n_channels: int):
    in_act = input_a + input_b
    return torch.tanh(in_act[:, :n_channels]) * torch.sigmoid(in_act[:, n_channels:])


class Invertible1x1Conv(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        W = torch.linalg.qr(torch.randn(c, c))[0]
        if torch.det(W) < 0:
            W[:, 0] = -1 * W[:, 0]
        self.conv = torch.nn.Conv1d(c, c, kernel_size=1, bias=False)
        self.conv.weight.data = W.contiguous().view(c, c, 1)

    def forward(self, z):
        batch_size, group_size, n_of_groups = z.size()
        log_det_W = batch_size * n_of_groups * torch.logdet(self.conv.weight.squeeze(-1).float())
        return self.conv(z), log_det_W


class WN(torch.nn.Module):
    def __init__(self, n_in, n_mel, n_layers, n_channels, kernel_size):
        super().__init__()
        self.n_layers, self.n_channels = n_layers, n_channels
        self.in_layers, self.res_skip_layers = torch.nn.ModuleList(), torch.nn.ModuleList()
        self.start = weight_norm(torch.nn.Conv1d(n_in, n_channels, 1))
        self.end = torch.nn.Conv1d(n_channels, 2 * n_in, 1)
        self.end.weight.data.zero_()
        self.end.bias.data.zero_()
        self.cond_layer = weight_norm(torch.nn.Conv1d(n_mel, 2 * n_channels * n_layers, 1))
        for i in range(n_layers):
            dilation = 2**i
            padding = int((kernel_size * dilation - dilation) / 2)
            layer = torch.nn.Conv1d(n_channels, 2 * n_channels, kernel_size, dilation=dilation, padding=padding)
            self.in_layers.append(weight_norm(layer))
            out = 2 * n_channels if i < n_layers - 1 else n_channels
            self.res_skip_layers.append(weight_norm(torch.nn.Conv1d(n_channels, out, 1)))

    def forward(self, audio, spect):
        audio = self.start(audio)
        output = torch.zeros_like(audio)
        spect = self.cond_layer(spect)
        for i in range(self.n_layers):
            offset = i * 2 * self.n_channels
            acts = fused_add_tanh_sigmoid_multiply(
                self.in_layers[i](audio), spect[:, offset : offset + 2 * self.n_channels], self.n_channels
            )
            res_skip = self.res_skip_layers[i](acts)
            if i < self.n_layers - 1:
                audio = audio + res_skip[:, : self.n_channels]
                output = output + res_skip[:, self.n_channels :]
            else:
                output = output + res_skip
        return self.end(output)


class WaveGlow(torch.nn.Module):
    def __init__(self, n_mel=80, n_flows=12, n_group=8, early_every=4, early_size=2):
        super().__init__()
        self.upsample = torch.nn.ConvTranspose1d(n_mel, n_mel, 1024, stride=256)
        self.n_flows, self.n_group, self.early_every, self.early_size = n_flows, n_group, early_every, early_size
        self.WN, self.convinv = torch.nn.ModuleList(), torch.nn.ModuleList()
        n_half = n_remaining = n_group
        for k in range(n_flows):
            if k % early_every == 0 and k > 0:
                n_remaining -= early_size
            n_half = n_remaining // 2
            self.convinv.append(Invertible1x1Conv(n_remaining))
            self.WN.append(WN(n_half, n_mel * n_group, n_layers=8, n_channels=256, kernel_size=3))

    def forward(self, spect, audio):
        spect = self.upsample(spect)[:, :, : audio.size(1)]
        spect = spect.unfold(2, self.n_group, self.n_group).permute(0, 2, 1, 3)
        spect = spect.contiguous().view(spect.size(0), spect.size(1), -1).permute(0, 2, 1)
        audio = audio.unfold(1, self.n_group, self.n_group).permute(0, 2, 1)
        early, log_s_list, log_det_list = [], [], []
        for k in range(self.n_flows):
            if k % self.early_every == 0 and k > 0:
                early.append(audio[:, : self.early_size])
                audio = audio[:, self.early_size :]
            audio, log_det = self.convinv[k](audio)
            log_det_list.append(log_det)
            half = audio.size(1) // 2
            audio_0, audio_1 = audio[:, :half], audio[:, half:]
            output = self.WN[k](audio_0, spect)
            log_s, b = output[:, half:], output[:, :half]
            audio = torch.cat([audio_0, torch.exp(log_s) * audio_1 + b], 1)
            log_s_list.append(log_s)
        early.append(audio)
        return torch.cat(early, 1), log_s_list, log_det_list


class WaveGlowLoss(torch.nn.Module):
    def __init__(self, sigma=1.0):
        super().__init__()
        self.sigma = sigma

    def forward(self, outputs):
        z, log_s_list, log_det_list = outputs
        log_s_total = sum(torch.sum(log_s.float()) for log_s in log_s_list)
        z = z.float()
        loss = torch.sum(z * z) / (2 * self.sigma**2) - log_s_total - sum(log_det_list)
        return loss / z.numel()


def train(batch_size=12, segment=16000, learning_rate=1e-4):
    criterion = WaveGlowLoss()
    model = WaveGlow().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    scaler = torch.amp.GradScaler("cuda")
    clips = 0.1 * torch.randn(64, segment)
    mels = torch.randn(64, 80, segment // 256 + 1)
    for iteration in steps():
        model.zero_grad()
        pick = torch.randint(0, 64, (batch_size,))
        mel, audio = mels[pick].cuda(), clips[pick].cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            outputs = model(mel, audio)
        loss = criterion(outputs)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        reduced_loss = loss.item()
        if iteration % 25 == 0:
            print(f"{iteration}:\t{reduced_loss:.9f}")


if __name__ == "__main__":
    train()

import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tick import steps


class configs:
    device = "cuda"
    input_length = 10
    total_length = 20
    img_width = 64
    img_channel = 1
    patch_size = 4
    num_hidden = [128, 128, 128, 128]
    filter_size = 5
    stride = 1
    layer_norm = True
    batch_size = 8
    lr = 1e-4
    decouple_beta = 0.1
    r_sampling_step_1 = 25000
    r_sampling_step_2 = 50000
    r_exp_alpha = 5000


class SpatioTemporalLSTMCell(nn.Module):
    def __init__(self, in_channel, num_hidden, width, filter_size, stride, layer_norm):
        super().__init__()
        self.num_hidden = num_hidden
        self.padding = filter_size // 2
        self._forget_bias = 1.0

        def conv(cin, cout):
            body = [nn.Conv2d(cin, cout, filter_size, stride, self.padding, bias=False)]
            if layer_norm:
                body.append(nn.LayerNorm([cout, width, width]))
            return nn.Sequential(*body)

        self.conv_x = conv(in_channel, num_hidden * 7)
        self.conv_h = conv(num_hidden, num_hidden * 4)
        self.conv_m = conv(num_hidden, num_hidden * 3)
        self.conv_o = conv(num_hidden * 2, num_hidden)
        self.conv_last = nn.Conv2d(num_hidden * 2, num_hidden, kernel_size=1, stride=1, padding=0, bias=False)

    def forward(self, x_t, h_t, c_t, m_t):
        x_concat, h_concat, m_concat = self.conv_x(x_t), self.conv_h(h_t), self.conv_m(m_t)
        i_x, f_x, g_x, i_xp, f_xp, g_xp, o_x = torch.split(x_concat, self.num_hidden, dim=1)
        i_h, f_h, g_h, o_h = torch.split(h_concat, self.num_hidden, dim=1)
        i_m, f_m, g_m = torch.split(m_concat, self.num_hidden, dim=1)

        i_t = torch.sigmoid(i_x + i_h)
        f_t = torch.sigmoid(f_x + f_h + self._forget_bias)
        g_t = torch.tanh(g_x + g_h)
        delta_c = i_t * g_t
        c_new = f_t * c_t + delta_c

        i_tp = torch.sigmoid(i_xp + i_m)
        f_tp = torch.sigmoid(f_xp + f_m + self._forget_bias)
        g_tp = torch.tanh(g_xp + g_m)
        delta_m = i_tp * g_tp
        m_new = f_tp * m_t + delta_m

        mem = torch.cat((c_new, m_new), 1)
        o_t = torch.sigmoid(o_x + o_h + self.conv_o(mem))
        h_new = o_t * torch.tanh(self.conv_last(mem))
        return h_new, c_new, m_new, delta_c, delta_m


class RNN(nn.Module):
    def __init__(self, configs):
        super().__init__()
        self.configs = configs
        self.frame_channel = configs.patch_size**2 * configs.img_channel
        self.num_layers = len(configs.num_hidden)
        width = configs.img_width // configs.patch_size
        cells = []
        for i in range(self.num_layers):
            in_channel = self.frame_channel if i == 0 else configs.num_hidden[i - 1]
            cells.append(
                SpatioTemporalLSTMCell(
                    in_channel,
                    configs.num_hidden[i],
                    width,
                    configs.filter_size,
                    configs.stride,
                    configs.layer_norm,
                )
            )
        self.cell_list = nn.ModuleList(cells)
        self.conv_last = nn.Conv2d(configs.num_hidden[-1], self.frame_channel, 1, 1, 0, bias=False)
        self.adapter = nn.Conv2d(configs.num_hidden[0], configs.num_hidden[0], 1, stride=1, padding=0, bias=False)

    def forward(self, frames_tensor, mask_true):
        frames = frames_tensor.permute(0, 1, 4, 2, 3).contiguous()
        mask_true = mask_true.permute(0, 1, 4, 2, 3).contiguous()
        batch, height, width = frames.shape[0], frames.shape[3], frames.shape[4]
        next_frames, h_t, c_t, decouple_loss = [], [], [], []
        for i in range(self.num_layers):
            zeros = torch.zeros([batch, self.configs.num_hidden[i], height, width]).to(frames.device)
            h_t.append(zeros)
            c_t.append(zeros)
        memory = torch.zeros([batch, self.configs.num_hidden[0], height, width]).to(frames.device)

        for t in range(self.configs.total_length - 1):
            if t == 0:
                net = frames[:, t]
            else:
                net = mask_true[:, t - 1] * frames[:, t] + (1 - mask_true[:, t - 1]) * x_gen
            for i, cell in enumerate(self.cell_list):
                net, c_t[i], memory, delta_c, delta_m = cell(net, h_t[i], c_t[i], memory)
                h_t[i] = net
                delta_c = F.normalize(self.adapter(delta_c).view(batch, delta_c.shape[1], -1), dim=2)
                delta_m = F.normalize(self.adapter(delta_m).view(batch, delta_m.shape[1], -1), dim=2)
                decouple_loss.append(torch.mean(torch.abs(torch.cosine_similarity(delta_c, delta_m, dim=2))))
            x_gen = self.conv_last(net)
            next_frames.append(x_gen)

        decouple_loss = torch.mean(torch.stack(decouple_loss, dim=0))
        next_frames = torch.stack(next_frames, dim=0).permute(1, 0, 3, 4, 2).contiguous()
        loss = F.mse_loss(next_frames, frames_tensor[:, 1:]) + self.configs.decouple_beta * decouple_loss
        return next_frames, loss


def reshape_patch(img, patch):
    b, t, h, w, c = img.shape
    a = img.reshape(b, t, h // patch, patch, w // patch, patch, c)
    return np.ascontiguousarray(a.transpose(0, 1, 2, 4, 3, 5, 6)).reshape(b, t, h // patch, w // patch, -1)


def reserve_schedule_sampling_exp(itr):
    if itr < configs.r_sampling_step_1:
        r_eta, eta = 0.5, 0.5
    elif itr < configs.r_sampling_step_2:
        r_eta = 1.0 - 0.5 * math.exp(-float(itr - configs.r_sampling_step_1) / configs.r_exp_alpha)
        eta = 0.5 - 0.5 / (configs.r_sampling_step_2 - configs.r_sampling_step_1) * (itr - configs.r_sampling_step_1)
    else:
        r_eta, eta = 1.0, 0.0
    w = configs.img_width // configs.patch_size
    shape = (w, w, configs.patch_size**2 * configs.img_channel)
    flags = np.zeros((configs.batch_size, configs.total_length - 2, *shape), dtype=np.float32)
    for i in range(configs.batch_size):
        for j in range(configs.total_length - 2):
            flags[i, j] = random.random() < (r_eta if j < configs.input_length - 1 else eta)
    return flags


class MovingSquares:
    """Stands in for Moving MNIST: two digits bounce in a box."""

    def __init__(self, size=28):
        self.digits = np.random.rand(100, size, size).astype(np.float32)
        self.size = size

    def sequence(self):
        frames = np.zeros((configs.total_length, configs.img_width, configs.img_width, 1), np.float32)
        limit = configs.img_width - self.size
        for digit in self.digits[np.random.randint(100, size=2)]:
            place, speed = np.random.rand(2) * limit, np.random.randn(2) * 3
            for t in range(configs.total_length):
                place = place + speed
                speed = np.where((place < 0) | (place > limit), -speed, speed)
                place = place.clip(0, limit)
                y, x = place.astype(int)
                window = frames[t, y : y + self.size, x : x + self.size, 0]
                np.maximum(window, digit, out=window)
        return frames

    def get_batch(self):
        return np.stack([self.sequence() for _ in range(configs.batch_size)])


class Model:
    def __init__(self):
        self.network = RNN(configs).to(configs.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=configs.lr)

    def train(self, frames, mask):
        frames_tensor = torch.FloatTensor(frames).to(configs.device)
        mask_tensor = torch.FloatTensor(mask).to(configs.device)
        self.optimizer.zero_grad()
        _, loss = self.network(frames_tensor, mask_tensor)
        loss.backward()
        self.optimizer.step()
        return loss.detach().cpu().numpy()


model, data = Model(), MovingSquares()
for itr in steps():
    ims = reshape_patch(data.get_batch(), configs.patch_size)
    if itr % 2:
        ims = ims[:, ::-1].copy()
    cost = model.train(ims, reserve_schedule_sampling_exp(itr + 1))
    if itr % 25 == 0:
        print("itr:", itr, "training loss:", float(cost))

import time

import torch
from torch import nn, optim
from tick import steps

BATCH, IMAGE = 8, 256
CONTENT_WEIGHT, STYLE_WEIGHT, TV_WEIGHT = 1e5, 1e10, 1e-6


class ConvLayer(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, upsample=None):
        super().__init__()
        self.upsample = upsample
        self.reflection_pad = nn.ReflectionPad2d(kernel_size // 2)
        self.conv2d = nn.Conv2d(in_channels, out_channels, kernel_size, stride)

    def forward(self, x):
        if self.upsample:
            x = nn.functional.interpolate(x, mode="nearest", scale_factor=self.upsample)
        return self.conv2d(self.reflection_pad(x))


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = ConvLayer(channels, channels, 3, 1)
        self.in1 = nn.InstanceNorm2d(channels, affine=True)
        self.conv2 = ConvLayer(channels, channels, 3, 1)
        self.in2 = nn.InstanceNorm2d(channels, affine=True)
        self.relu = nn.ReLU()

    def forward(self, x):
        out = self.relu(self.in1(self.conv1(x)))
        return self.in2(self.conv2(out)) + x


class TransformerNet(nn.Sequential):
    def __init__(self):
        def unit(i, o, k, s, up=None):
            return [ConvLayer(i, o, k, s, up), nn.InstanceNorm2d(o, affine=True), nn.ReLU()]

        super().__init__(
            *unit(3, 32, 9, 1),
            *unit(32, 64, 3, 2),
            *unit(64, 128, 3, 2),
            *[ResidualBlock(128) for _ in range(5)],
            *unit(128, 64, 3, 1, 2),
            *unit(64, 32, 3, 1, 2),
            ConvLayer(32, 3, 9, 1),
        )


class Vgg16(nn.Module):
    """relu1_2, relu2_2, relu3_3, relu4_3"""

    def __init__(self):
        super().__init__()
        self.slices = nn.ModuleList()
        c = 3
        for i, (width, convs) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3)]):
            layers = [nn.MaxPool2d(2, 2)] if i else []
            for _ in range(convs):
                layers += [nn.Conv2d(c, width, 3, padding=1), nn.ReLU(inplace=True)]
                c = width
            self.slices.append(nn.Sequential(*layers))
        for p in self.parameters():
            p.requires_grad = False

    def forward(self, x):
        outputs = []
        for s in self.slices:
            x = s(x)
            outputs.append(x)
        return outputs


def gram_matrix(y):
    b, ch, h, w = y.size()
    features = y.view(b, ch, w * h)
    return features.bmm(features.transpose(1, 2)) / (ch * h * w)


def normalize_batch(batch):
    mean = batch.new_tensor([0.485, 0.456, 0.406]).view(-1, 1, 1)
    std = batch.new_tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
    return (batch.div(255.0) - mean) / std


def total_variation(y):
    return (y[..., 1:, :] - y[..., :-1, :]).abs().sum() + (y[..., 1:] - y[..., :-1]).abs().sum()


def main():
    device = torch.device("cuda")
    torch.manual_seed(42)
    transformer = TransformerNet().to(device)
    optimizer = optim.Adam(transformer.parameters(), 1e-3)
    mse_loss = nn.MSELoss()
    vgg = Vgg16().to(device)

    style = torch.rand(1, 3, 512, 512, device=device) * 255
    features_style = vgg(normalize_batch(style.repeat(BATCH, 1, 1, 1)))
    gram_style = [gram_matrix(y) for y in features_style]
    del features_style

    transformer.train()
    agg_content, agg_style, count = 0.0, 0.0, 0
    for batch_id in steps():
        x = torch.randint(0, 256, (BATCH, 3, IMAGE, IMAGE), device=device).float()
        optimizer.zero_grad()
        y = transformer(x)
        tv = total_variation(y)
        y, x = normalize_batch(y), normalize_batch(x)
        features_y, features_x = vgg(y), vgg(x)
        content_loss = CONTENT_WEIGHT * mse_loss(features_y[1], features_x[1])
        style_loss = 0.0
        for ft_y, gm_s in zip(features_y, gram_style):
            style_loss += mse_loss(gram_matrix(ft_y), gm_s[: len(x), :, :])
        style_loss *= STYLE_WEIGHT
        total_loss = content_loss + style_loss + TV_WEIGHT * tv
        total_loss.backward()
        optimizer.step()

        count += len(x)
        agg_content += content_loss.item()
        agg_style += style_loss.item()
        if (batch_id + 1) % 20 == 0:
            print(f"{time.ctime()}\t[{count}]\tcontent: {agg_content / 20:.3f}\tstyle: {agg_style / 20:.3f}")
            agg_content = agg_style = 0.0


if __name__ == "__main__":
    main()

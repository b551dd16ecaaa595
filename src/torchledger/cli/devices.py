"""``torchledger devices``."""

from __future__ import annotations

import click

from torchledger.cli.output import json_option


@click.command(name="devices")
@json_option
def command(as_json: bool) -> None:
    """List the devices whose times can be predicted: from what, how old, how accurate.

    Those with rows have a model that was learned from so many of their own measurements; the others are known by their
    data sheets, and get the nearest model at their rates, with wider intervals. A device of your own: `calibrate` it,
    or write a data sheet and pass the file to `predict --device`:

    \b
      names: [L40]
      compute_capability: [8, 9]
      num_multiprocessors: 142
      total_memory_bytes: 48000000000
      l2_cache_bytes: 100663296
      clock_rate_mhz: 2490
      copy_gb_per_s: 864          # memory bandwidth
      tflops: {float16: 181.0, bfloat16: 181.0, float32: 90.5}   # dense

    Names, multiprocessors, bandwidth and half-precision rate must be there.
    """
    from torchledger.cli.output import print_document, print_json
    from torchledger.predicting.devices import known_devices
    from torchledger.reporting.devices import devices_as_plain, devices_document

    found = known_devices()
    if as_json:
        print_json(devices_as_plain(found))
    else:
        print_document(devices_document(found))

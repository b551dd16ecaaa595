"""What fills a device's memory over a step, and when.

Enters: the storages that were heard in a step, and its calls. Leaves: ``LiveStorage`` and ``StepMemory`` records;
on reading, the live set at each call, its peak, and what recomputing modules would free.
"""

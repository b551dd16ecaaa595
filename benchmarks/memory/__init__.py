"""Is the peak of memory the one that is said? Of recordings and of plans beside the allocator's; what libraries work
in, and what advice frees.
"""

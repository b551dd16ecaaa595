"""What the hardware and the software are: described, measured (ceilings, doctor), or taken from data sheets."""

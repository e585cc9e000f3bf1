"""Everything a device needs, from a run folder into a signed bundle; and the demo."""

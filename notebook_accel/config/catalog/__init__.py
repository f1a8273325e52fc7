"""Every setting there is, declared once: one file a few sections, one row a setting."""

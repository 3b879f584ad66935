"""Personal data and credentials in text: `find.py` finds and masks, one module each family."""

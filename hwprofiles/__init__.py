"""Hardware and models as data: device and link sheets, platforms, calibrated profiles, model shapes, row curves."""

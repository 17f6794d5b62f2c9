run presets

"""Other libraries' models with hopfy's maps; each module needs the library of its name."""

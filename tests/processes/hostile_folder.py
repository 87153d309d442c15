"""Fill a folder with modules that must not run, named as those that serve-eval imports."""

OURS = ("launchers", "serve_eval")
STANDARD = ("random", "json", "typing", "__future__", "signal", "socket", "selectors", "pickle")
OF_OTHERS = ("numpy", "aiohttp", "msgspec", "torch", "uvloop", "yaml")
AT_START = ("sitecustomize", "usercustomize")
NAMES = (*OURS, *STANDARD, *OF_OTHERS, *AT_START)
RAN = "a module of the current folder ran"


def fill(folder, *, without=()):
    """Write the modules and files of configuration; return the file that they would write to."""
    mark = folder.parent / f"{folder.name}.ran"
    text = (
        f"import sys\nopen({str(mark)!r}, 'a').write(f'{{__name__}} by {{sys.orig_argv}}\\n')\n"
        f"raise ImportError({RAN!r})\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if name in without:
            continue
        if name in STANDARD + AT_START:
            (folder / f"{name}.py").write_text(text)
        else:
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(text)
    (folder / "evil.pth").write_text(f"import sys; exec({text!r})\n")
    if "evil" in without:
        return mark
    info = folder / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[serve_eval.launchers]\nembedded = torch:launch\n")
    return mark

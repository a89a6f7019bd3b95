"""Reproduction: tables and figures of the papers as declarations.

An artifact is a yaml file in `conf/artifact/<paper>/`; no paper has code of its own here. The way through:

    declaration   what the yaml says, typed                    grid       the runs that it asks for, as plans
    reduce        from finished runs (or plans) to rows        rows       the tidy table, to CSV and back
    expression    the language of predicates                   claims     verdicts
    layout        the paper's table in markdown                figure     the plot
    publish       the artifact's folder, whole or not at all   index      one page of all of them
    reproduce     all of it in order                           published  the committed copies, and their check
"""

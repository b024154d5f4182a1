"""The experiments of "Intra-Cluster Mixup" (Mai and Lin, TMLR 2026), each table and figure as one named study.

Data flows: published, protocols, entries, studies, results, compare, captions; then render, figures, claims, page and
its pictures; overview has all studies at a glance.
`runs` makes training runs of studies; `noise` and `gradients` are studies that are none.
"""

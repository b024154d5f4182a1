"""The experiments of "Intra-Cluster Mixup" (Mai and Lin, TMLR 2026), each table and figure as one named study.

Data flows: published, protocols, entries, studies, results, compare; then render, figures, claims and page.
`runs` makes training runs of studies; `noise` and `gradients` are studies that are none.
"""

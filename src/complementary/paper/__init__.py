"""The experiments of "Intra-Cluster Mixup" (Mai and Lin, TMLR 2026): each table and figure is one named study.

| module | content |
|---|---|
| `published` | the published numbers and statements |
| `studies` | every table and figure as a list of settings |
| `protocols` | from a setting to a configuration, as the text says or as the published code did |
| `store` | runs of studies: cells of a sweep, stored results, export |
| `compare` | our numbers beside the published ones; Welch's test; tables |
| `distances` | how far each protocol is from the published numbers |
| `claims` | verdicts on the statements |
| `readings` | which reading of the method gives the published numbers; text against code |
| `plan` | what to run next in a given time |
| `smoke` | every study in seconds, on tiny data |
| `figures`, `page` | the figures and docs/reproduction.md |
| `noise`, `gradients` | two studies that train no classifier |
"""

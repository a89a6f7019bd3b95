"""What papers are written with.

api            all that a paper's module imports
artifact       what an artifact is made of; measure: what is measured; claim: what is claimed
grid           the runs that it asks for; rehearse: the check of everything before anything runs
numbers        what runs report and plans know; facts, audits: what plans alone say
search         the stages in which the best cells of a grid are found
reduce         all of it as rows; rows: how they are asked; tables: means over seeds, files
verdict        comparisons over paired seeds; judge: the claims of an artifact
layout, figure its page; report: all pages; published: those that are committed
reproduce      run what is missing, write what can be written
"""

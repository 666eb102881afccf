/* What an OCI runtime that is loaded once need not take along into each start. Part of the library alone. */
#ifndef SHED_H
#define SHED_H

/* Libraries that the program does not name itself stay behind at every fork: what it calls of its own libraries in a
   start calls nothing of theirs, and a fork and the end of a process cost as much as there is mapped. What may look for a
   symbol, or load something, is done here, ahead: nothing of them is there to be looked through later. */
void shed(void);

#endif

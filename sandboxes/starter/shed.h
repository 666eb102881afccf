/* What an OCI runtime that is loaded once need not take along into each start. Part of the library alone. */
#ifndef SHED_H
#define SHED_H

/* Libraries that are here now and that the program does not name itself stay behind at every fork, whose price, and that
   of an end, is what is mapped. What the program asks the C library of users and of time is looked up thereafter, so that
   what is loaded for that stays with it. */
void shed(void);

/* In a fork: it ends without the destructors of libraries, which are not all here. */
void end_plainly(void);

#endif

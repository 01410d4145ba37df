//! What running gangs say of themselves: agent 0 of each is asked, a few at a time, within deadlines.

//! Reads the histories that `cargo xtask chaos` records, and reports what they prove to be wrong.
//!
//! A history is what the processes of a run wrote down themselves: every call with its answer, every delivery to a
//! handler, and every fault with the process that it hit. Times are those of the machine's clock, which the database on
//! the same machine shares; a run is void when that clock is stepped.
//!
//! The checker is a pure function, [`checker::check`], over such a history. It reports only what a history proves. A call
//! without an answer, or with an error, may have been carried out or not. A lease is valid as long as its holder has
//! proof of it: from the answer to the claim until the deadline that came with it, plus each extension that was
//! confirmed. What it checks:
//!
//! - **Nothing is lost.** Every acknowledged message was completed, is dead, or is still there when the run is over. In a
//!   queue that keeps completed messages the archive must show it; in another an accepted or unanswered completion does.
//! - **Nothing is stored twice.** A message has one id, however often the enqueue of a dedupe key was repeated, and no
//!   message comes out that was never put in.
//! - **No completion is accepted twice**, and nothing is delivered after its completion was accepted.
//! - **No two valid leases at once.** A lease begins (by the database's clock) when no other lease of this message is
//!   valid, unless the holder of that other lease had begun to give it up. A handler of the run loop holds its message
//!   until it returns, is told that its lease is lost, or its process is stopped or killed. The same holds for a key.
//! - **No lease holder is refused.** A verb that was asked and answered while its lease was valid is not answered
//!   "lost", unless the holder itself had asked for another end before. A message whose handler returned "complete" is
//!   not delivered again, unless the handler was told that the lease was lost, or its process was stopped or killed.
//! - **Order per key.** A message of a key is not delivered before all earlier ones of that key are finished.
//! - **Order per lane.** A message that was never delivered before is not overtaken by a later one of the same
//!   producer. A statement that dies may hold back the rows it had locked, so pairs around a fault are not compared
//!   where the backend locks rows.
//! - **Every call is answered in its time**: what it was promised, plus the slack that the rules state, plus the time
//!   that its process or its server was stopped.
//! - **Nothing dies or completes without a cause**, and when the faults are over everything that is left is delivered.

pub mod checker;
pub mod history;

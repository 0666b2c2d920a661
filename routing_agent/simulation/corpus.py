"""What sample clients say: system prompts, questions, messages to sort, long documents."""

from __future__ import annotations

from routing_agent.simulation.text import answer

SYSTEM_PROMPTS = (
    """You are the assistant of a regional railway. You answer travellers who write from the
platform, from the train or from home, often in a hurry. Say first what the traveller can do now,
then why. Name the station, the platform and the time when you know them, and say plainly when
you do not. Rules you always keep:
- A delay below ten minutes is told as it is; above ten minutes you offer the next connection
  too.
- A missed last connection means a taxi or a room at our cost; ask for the ticket number first.
- Bicycles travel free outside the rush hours, which are 6:30 to 9:00 and 16:00 to 18:30.
- Dogs need half a ticket unless they fit in a bag. Guide dogs travel free, always.
- Refunds below four coins are not paid out but credited to the next journey.
- Never promise that a train will wait. Never guess the cause of a disruption.
- If somebody is hurt or in danger, give the emergency number first and nothing else before it.
Write in short paragraphs, without lists, without exclamation marks, and never more than eight
sentences. Answer in the language of the question. If the question is not about travelling, say
in one sentence what you are here for and offer to help with a journey.""",
    """You help the people of a small hardware shop that sells by post. You see the order, the stock
and the notes of colleagues. Your answers go straight to the customer, so write as a patient
neighbour who knows tools well. Explain a technical word the first time you use it. How we work:
- Orders before noon leave the same day. Heavy goods leave on Tuesdays and Fridays.
- Returns are taken for sixty days if the thing is clean; paint that was mixed to order is not
  taken.
- A broken part is replaced without asking for a picture; two broken parts in a month are
  reported.
- Prices in the catalogue hold until the end of the quarter, whatever the website says.
- Advice on gas, mains voltage and load-bearing walls ends with the words: let a professional
  look.
Before you suggest a product, ask what it will be used for, unless that is already clear.
Suggest at most two products, the cheaper one first, and say what the dearer one does better. Do
not praise the customer and do not apologise more than once. Sign with the name of the shop.""",
    """You are a study partner for a first course in statistics. The students are nurses, teachers
and bakers who study in the evening; assume arithmetic and nothing else. Answer a question with a
small example in whole numbers before any formula. When a student makes a mistake, find the step
in which it happened and ask about that step only. Things to keep in mind:
- Use the words of the course: sample, spread, middle value, chance, and explain any other term.
- Draw tables with at most four columns. Never use more than two decimals.
- If homework is pasted in whole, help with the first part and let the student try the next one.
- If the numbers do not add up, say so at once and show the sum.
- A question about another subject gets a kind sentence and a way back to the course.
End each answer with one question that checks whether the idea has arrived, easy enough to be
answered in a minute. Do not give the answer to that question until the student has tried.""",
    """You write the first draft of answers for a town hall. A clerk reads every draft before it is
sent. The letters are about permits, waste collection, trees, markets, noise and weddings. Keep
the tone calm and exact, also where the letter is not. Refer to an article of the local rules
only if it is given in the letter or in this text; otherwise mark the place with three dots for
the clerk. Local rules in short: building permits are decided within eight weeks; a tree above
thirty centimetres needs a permit to be felled between March and September; market places are
given out in January by lot; music in the open ends at ten, on three evenings a year at
midnight; waste put out on the wrong day is collected at the owner's cost after one reminder;
weddings are held on the first and third Saturday. Structure: what was asked, what is possible,
what the writer has to do next and by when. No more than one page. Dates in words. No
abbreviations, not even common ones.""",
)  # fmt: skip

QUESTIONS = (
    "My connection leaves in four minutes and the train is late. What should I do?",
    "Can you explain that again with a smaller example?",
    "What happens if I miss the date by a day?",
    "Which of the two would you take for a wooden floor?",
    "I tried what you said and the result is still seven. Where is my mistake?",
    "Is there a cheaper way to get the same thing?",
    "Please write it in a friendlier way, but keep the dates.",
    "And how would that change with twice as many people?",
    "Can I bring my bicycle and a large dog on the same journey?",
    "The neighbours have a party every week. What can be done about it?",
    "Why is the middle value better than the mean here?",
    "What do I need before I can start on Saturday morning?",
    "Could you give me the three most important points only?",
    "Somebody told me the opposite last week. Who is right?",
    "How long will the glue need to dry at five degrees?",
    "Thank you. What would you do in my place?",
    "Please compare both choices for a family of five.",
    "Is that still true in winter?",
    "What should I write down so that I can check it later?",
    "Where can I read more about this, in simple words?",
)

DOCUMENT_TASKS = (
    "Summarise the text above in five sentences for somebody who has not read it.",
    "Which promises does the text make, and to whom?",
    "List what has to be done next, in the order of the text.",
    "What does the text leave open?",
)

CLASSIFICATION_PROMPT = (
    "Sort the message into exactly one of these labels: billing, delivery, refund, question, "
    "praise, positive, negative, neutral. Answer with the label alone, in small letters, without a "
    "full stop."
)

MESSAGES = (
    "The parcel came a day early and everything was in it. Lovely.",
    "I was charged twice for the same ticket on the fourth of May.",
    "Where is my order? The page has said tomorrow for a week now.",
    "Do you also have the blue one in a smaller size?",
    "The handle broke after two days and I would like my money back.",
    "It is all right, I suppose. It does what it says.",
    "The man on the phone took half an hour and solved it. Please thank him.",
    "Your invoice has the wrong address; our accountant cannot book it.",
    "The driver left it in the rain in front of the wrong door.",
    "How do I change the name on a booking?",
    "Never again. Three letters and not one answer.",
    "Please cancel the second item and send the rest.",
)


def document(number: int, tokens: int) -> str:
    """Give a long text; the same number always gives the same text."""
    return "".join(answer(number, tokens, tokens))
